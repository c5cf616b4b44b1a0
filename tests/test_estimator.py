"""The scikit-learn face: its contract, its attributes, and what it says while it trains."""

import ast
import importlib
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import duoplda
from duoplda import PLDA, Backend, DuopldaError, Posterior, Recordings, Sides, Statistics, metrics
from duoplda.datasets import make_recordings
from duoplda.preprocessing import LDA, Center, LengthNorm

D = 5
X, SPEAKER, SESSION, _ = make_recordings(
    25, (1, 4), (1, 4), n_dimensions=D, n_speaker_factors=3, n_session_factors=2, seed=7
)
PARAMETERS = ("mean_", "speaker_loadings_", "session_loadings_", "noise_precision_")


def assert_same_model(a, b):
    for name in PARAMETERS:
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    np.testing.assert_array_equal(a.log_likelihoods_, b.log_likelihoods_)
    assert (a.n_iter_, a.converged_, a.n_evaluations_) == (b.n_iter_, b.converged_, b.n_evaluations_)


# -- the contract ------------------------------------------------------------------------------------------------------


@parametrize_with_checks([PLDA(), PLDA(n_speaker_factors=1, n_session_factors=0, accelerate=False)])
def test_check_estimator(estimator, check):
    check(estimator)


def test_public_names():
    names = {"PLDA", "Backend", "DuopldaError", "Posterior", "Recordings", "Sides", "Statistics", "__version__"}
    names |= {"DomainWarning", "advise", "enroll_recordings", "score", "split"}
    assert set(duoplda.__all__) == set(dir(duoplda)) == names
    for name in duoplda.__all__:
        assert getattr(duoplda, name) is not None
    assert issubclass(duoplda.DuopldaError, ValueError)
    public = {n for n in dir(PLDA) if not n.startswith("_")}
    assert public >= {
        *("fit", "fit_statistics", "from_parameters", "log_likelihood", "score", "conditional_log_likelihood"),
        *("posterior", "transform", "sample", "enroll", "llr", "partition_log_likelihood", "posterior_probability"),
        *("save", "load"),
    }


def test_signatures():
    """The order of arguments that users rely on."""
    plda = PLDA(3, 2)
    assert (plda.n_speaker_factors, plda.n_session_factors) == (3, 2)
    plda.fit(X, SPEAKER, SESSION)
    assert isinstance(plda.posterior(X, SPEAKER, SESSION), Posterior)
    assert isinstance(plda.enroll(X, SPEAKER, SESSION), Sides)
    assert isinstance(Statistics.from_arrays(X, SPEAKER, SESSION), Statistics)


HEAVY = "torch pandas pyarrow h5py matplotlib typer rich kaldiio dask array_api_compat array_api_strict statsmodels"


def test_import_needs_the_core_dependencies_only():
    """On a machine that has nothing else: import, train, score."""
    code = f"""
        import sys

        class Refuse:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in {HEAVY.split()}:
                    raise ModuleNotFoundError(f"No module named {{name!r}} (refused by the test)", name=name)

        sys.meta_path.insert(0, Refuse())
        try:
            import torch
        except ModuleNotFoundError:
            pass
        else:
            sys.exit("the hook does not work")
        import duoplda
        from duoplda.datasets import make_recordings
        X, speaker, session, _ = make_recordings(20, n_dimensions=4, n_speaker_factors=2, n_session_factors=1)
        plda = duoplda.PLDA(2, 1).fit(X, speaker, session=session)
        sides = plda.enroll(X, speaker, session)
        print(plda.llr(sides, sides).shape)
        """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "(20, 20)\n", "")


def test_import_loads_nothing_heavy():
    """Where they are installed, no module that `import duoplda` runs imports them (scikit-learn itself may)."""
    code = (
        "import sys, duoplda; duoplda.PLDA; print(*sorted(m for m in sys.modules if m.partition('.')[0] == 'duoplda'))"
    )
    names = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "duoplda.estimators.plda" in names
    for name in names:
        source = Path(importlib.import_module(name).__file__).read_text()
        for node in ast.parse(source).body:  # the top level: not inside functions
            imported = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            imported += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {i.partition(".")[0] for i in imported} & set(HEAVY.split()), f"{name}, line {node.lineno}"


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_clone_and_parameters():
    given = {
        **PLDA().get_params(),
        "n_speaker_factors": 2,
        "n_session_factors": 1,
        "init": "random",
        "tol": 1e-3,
        "max_iter": 17,
        "accelerate": False,
        "minimum_divergence": False,
        "noise_floor": 1e-3,
        "random_state": 4,
        "callback": None,
    }
    plda = PLDA(**given)
    assert plda.get_params() == given
    plda.fit(X, SPEAKER, session=SESSION)
    assert plda.get_params() == given  # training leaves them as they were
    fresh = clone(plda)
    assert fresh.get_params() == given
    assert not hasattr(fresh, "mean_")
    assert_same_model(fresh.fit(X, SPEAKER, session=SESSION), plda)
    assert PLDA().set_params(n_speaker_factors=3, tol=0.1).get_params()["tol"] == 0.1
    assert repr(PLDA(3)) == "PLDA(n_speaker_factors=3)"


def test_attributes():
    plda = PLDA(3, 2).fit(X, SPEAKER, session=SESSION)
    shapes = [getattr(plda, name).shape for name in PARAMETERS]
    assert shapes == [(D,), (D, 3), (D, 2), (D, D)]
    assert plda.converged_ is True
    assert plda.log_likelihoods_.shape == (plda.n_iter_ + 1,)
    assert np.diff(plda.log_likelihoods_).min() >= 0
    assert plda.n_evaluations_ >= plda.n_iter_ + 1
    assert plda.n_features_in_ == D
    assert plda.fit(X, SPEAKER, session=SESSION) is plda
    total = plda.log_likelihood(X, SPEAKER, SESSION)[1].sum()
    assert plda.log_likelihoods_[-1] == pytest.approx(total, rel=1e-10)  # of the model that is kept
    assert plda.score(X, SPEAKER, SESSION) == pytest.approx(total / len(X), rel=1e-12)


def test_input_is_not_written_to():
    given = X.copy()
    plda = PLDA(3, 2).fit(given, SPEAKER, session=SESSION)
    plda.transform(given)
    plda.log_likelihood(given, SPEAKER, SESSION)
    plda.enroll(given, SPEAKER, SESSION)
    np.testing.assert_array_equal(given, X)


def test_feature_names():
    plda = PLDA(3, 2).fit(X, SPEAKER, session=SESSION)
    assert plda.get_feature_names_out().tolist() == ["plda0", "plda1", "plda2"]
    assert plda.transform(X).shape == (len(X), 3)
    assert PLDA().fit(X, SPEAKER).get_feature_names_out().shape == (D,)


def test_data_frames():
    """Columns have names, labels are Series, and transform gives a frame where one is asked for."""
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(X, columns=[f"e{i}" for i in range(D)])
    plda = PLDA(3, 2).fit(frame, pd.Series(SPEAKER), session=pd.Series(SESSION))
    by_array = PLDA(3, 2).fit(X, SPEAKER, session=SESSION)
    np.testing.assert_allclose(plda.noise_precision_, by_array.noise_precision_, rtol=1e-10)
    assert plda.feature_names_in_.tolist() == frame.columns.tolist()
    out = plda.set_output(transform="pandas").transform(frame)
    assert out.columns.tolist() == ["plda0", "plda1", "plda2"]
    with pytest.raises(ValueError, match="feature names should match"):
        plda.transform(frame.rename(columns={"e0": "other"}))


def test_labels_in_another_order_than_the_rows_are_refused():
    """Rows and labels that both have an index must have the same; what has none goes by its order, as ever."""
    pd = pytest.importorskip("pandas")
    names = [f"utt{i}" for i in range(len(X))]
    frame = pd.DataFrame(X, index=names)
    speaker, session, kind = (pd.Series(values, index=names) for values in (SPEAKER, SESSION, SPEAKER))
    shuffled = speaker.sample(frac=1.0, random_state=0)
    plda = PLDA(3, 2).fit(frame, speaker, session=session)
    np.testing.assert_array_equal(plda.noise_precision_, PLDA(3, 2).fit(frame, SPEAKER, SESSION).noise_precision_)
    backend = Backend(plda=PLDA(3, 2)).fit(frame, speaker, session)
    chain = Backend(whiten=False, length_norm=False, center_by_channel=True)
    wrong = [
        lambda: PLDA(3, 2).fit(frame, shuffled),
        lambda: Backend(plda=PLDA(3, 2)).fit(frame, shuffled),
        lambda: PLDA(3, 2).fit(X, shuffled, session=session),  # labels with each other
        lambda: PLDA(3, 2).fit(frame, speaker, session=session[::-1]),
        lambda: chain.fit(frame, speaker, channel=kind[::-1]),
        *(
            call
            for model in (plda, backend)
            for call in (
                lambda model=model: model.adapt(frame, shuffled, method="labels"),
                lambda model=model: model.enroll(frame, shuffled),
                lambda model=model: model.enroll(frame, SPEAKER, shuffled),
                lambda model=model: model.cluster(frame, session[::-1]),
                lambda model=model: model.transform(frame, kind[::-1]),
            )
        ),
        lambda: plda.score(frame, shuffled),
        lambda: plda.posterior(frame, shuffled),
        lambda: Recordings.from_arrays(frame, shuffled),
        lambda: Statistics.from_arrays(frame, shuffled),
        lambda: LDA(2).fit(frame, shuffled),
        lambda: Center(by_channel=True).fit(frame, channel=kind[::-1]),
        lambda: metrics.cllr(pd.Series(X[:, 0], names), shuffled == SPEAKER[0]),
    ]
    for call in wrong:
        with pytest.raises(DuopldaError, match=r"have different indexes: row \d+ is 'utt\d+' in \w+, and 'utt\d+'"):
            call()
    with pytest.raises(DuopldaError, match=r"y\.loc\[X\.index\] puts them in the order of X"):
        PLDA(3, 2).fit(frame, shuffled)
    with pytest.raises(DuopldaError, match=r"'utt0' in X, and 0 in y\. where the order is right.*y\.to_numpy\(\)"):
        PLDA(3, 2).fit(frame, pd.Series(SPEAKER))
    with pytest.raises(DuopldaError, match=r"row 0 is 0 in X, and 1 in y\. "):
        PLDA(3, 2).fit(pd.DataFrame(X), pd.Series(SPEAKER).loc[[1, 0, *range(2, len(X))]])
    ordered = PLDA(3, 2).fit(frame, shuffled.loc[frame.index], session=session.to_numpy())
    np.testing.assert_array_equal(ordered.noise_precision_, plda.noise_precision_)


# -- sessions through pipelines ----------------------------------------------------------------------------------------


@pytest.fixture
def by_hand():
    """What the pipelines below must come to."""
    return PLDA(3, 2).fit(StandardScaler().fit_transform(X), SPEAKER, session=SESSION)


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def test_pipeline(by_hand):
    pipe = Pipeline([("scale", StandardScaler()), ("plda", PLDA(3, 2))])
    assert_same_model(pipe.fit(X, SPEAKER, plda__session=SESSION)["plda"], by_hand)
    np.testing.assert_array_equal(pipe.transform(X), by_hand.transform(StandardScaler().fit_transform(X)))
    assert_same_model(make_pipeline(StandardScaler(), PLDA(3, 2)).fit(X, SPEAKER, plda__session=SESSION)[-1], by_hand)


def test_pipeline_fit_transform(by_hand):
    pipe = Pipeline([("scale", StandardScaler()), ("plda", PLDA(3, 2))])
    expected = by_hand.transform(StandardScaler().fit_transform(X))
    np.testing.assert_array_equal(pipe.fit_transform(X, SPEAKER, plda__session=SESSION), expected)
    np.testing.assert_array_equal(PLDA(3, 2).fit_transform(X, SPEAKER, session=SESSION), by_hand_of_raw())


def by_hand_of_raw():
    return PLDA(3, 2).fit(X, SPEAKER, session=SESSION).transform(X)


@pytest.mark.usefixtures("routing")
def test_metadata_routing(by_hand):
    pipe = Pipeline([("scale", StandardScaler()), ("plda", PLDA(3, 2).set_fit_request(session=True))])
    assert_same_model(pipe.fit(X, SPEAKER, session=SESSION)["plda"], by_hand)
    renamed = Pipeline([("scale", StandardScaler()), ("plda", PLDA(3, 2).set_fit_request(session="call"))])
    assert_same_model(renamed.fit(X, SPEAKER, call=SESSION)["plda"], by_hand)


@pytest.mark.usefixtures("routing")
def test_metadata_routing_must_be_asked_for():
    """Sessions that nobody asked for are an error, not dropped in silence."""
    pipe = Pipeline([("scale", StandardScaler()), ("plda", PLDA(3, 2))])
    with pytest.raises(ValueError, match=r"\[session\] are passed but are not explicitly set as requested"):
        pipe.fit(X, SPEAKER, session=SESSION)


@pytest.mark.usefixtures("routing")
def test_cross_validation():
    """Sessions are cut into folds with the recordings."""
    from sklearn.model_selection import GroupKFold, cross_validate

    plda = PLDA(3, 2).set_fit_request(session=True).set_score_request(session=True)
    folds = GroupKFold(3)
    got = cross_validate(plda, X, SPEAKER, cv=folds, params={"session": SESSION, "groups": SPEAKER})["test_score"]
    expected = [
        PLDA(3, 2).fit(X[a], SPEAKER[a], session=SESSION[a]).score(X[b], SPEAKER[b], SESSION[b])
        for a, b in folds.split(X, SPEAKER, SPEAKER)
    ]
    np.testing.assert_array_equal(got, expected)


def by_loops(ny):
    """The score of each fold: length normalisation and PLDA by hand."""
    from sklearn.model_selection import GroupKFold

    Z = LengthNorm().fit_transform(X)
    return [
        PLDA(ny, 2).fit(Z[a], SPEAKER[a], session=SESSION[a]).score(Z[b], SPEAKER[b], SESSION[b])
        for a, b in GroupKFold(3).split(X, SPEAKER, SPEAKER)
    ]


@pytest.mark.usefixtures("routing")
def test_grid_search_over_a_pipeline_with_sessions():
    """A Pipeline sends an argument `sample_weight` along with every score, given or not."""
    from sklearn.model_selection import GridSearchCV, GroupKFold

    plda = PLDA(3, 2).set_fit_request(session=True).set_score_request(session=True)
    pipe = Pipeline([("norm", LengthNorm()), ("plda", plda)])
    search = GridSearchCV(pipe, {"plda__n_speaker_factors": [2, 3]}, cv=GroupKFold(3), error_score="raise")
    search.fit(X, SPEAKER, session=SESSION, groups=SPEAKER)
    got = np.stack([search.cv_results_[f"split{i}_test_score"] for i in range(3)])
    np.testing.assert_allclose(got, np.transpose([by_loops(2), by_loops(3)]))
    assert search.score(X, SPEAKER, session=SESSION) == search.best_estimator_.score(X, SPEAKER, session=SESSION)


def test_grid_search_without_routing():
    from sklearn.model_selection import GridSearchCV, GroupKFold

    pipe = Pipeline([("norm", LengthNorm()), ("plda", PLDA(3, 2))])
    search = GridSearchCV(pipe, {"plda__n_speaker_factors": [2, 3]}, cv=GroupKFold(3), error_score="raise")
    search.fit(X, SPEAKER, groups=SPEAKER, plda__session=SESSION)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    whole = PLDA(search.best_params_["plda__n_speaker_factors"], 2)
    assert_same_model(
        search.best_estimator_["plda"], whole.fit(LengthNorm().fit_transform(X), SPEAKER, session=SESSION)
    )


def held_out_cllr(model, rows):
    """The Cllr of held-out speakers, from the trials that the scorers are said to make."""
    return metrics.cllr(*metrics.held_out_trials(model, X[rows], SPEAKER[rows], SESSION[rows]))


@pytest.mark.usefixtures("routing")
def test_grid_search_chooses_by_the_cllr_of_held_out_speakers():
    from sklearn.model_selection import GridSearchCV, GroupKFold

    chain = Backend(plda=PLDA(3, 2, tol=1e-3)).set_fit_request(session=True)
    grid = {"lda": [3, 4], "length_norm": [True, False]}
    scoring = {"cllr": metrics.cllr_scorer, "eer": metrics.eer_scorer, "dcf": metrics.min_dcf_scorer}
    search = GridSearchCV(chain, grid, scoring=scoring, refit="cllr", cv=GroupKFold(3), error_score="raise")
    search.fit(X, SPEAKER, session=SESSION, groups=SPEAKER)
    by_hand = [
        [
            -held_out_cllr(clone(chain).set_params(**given).fit(X[a], SPEAKER[a], session=SESSION[a]), b)
            for a, b in GroupKFold(3).split(X, SPEAKER, SPEAKER)
        ]
        for given in search.cv_results_["params"]
    ]
    got = np.stack([search.cv_results_[f"split{i}_test_cllr"] for i in range(3)], axis=1)
    np.testing.assert_array_equal(got, by_hand)
    assert len(np.unique(got.mean(axis=1))) == 4
    assert search.best_params_ == search.cv_results_["params"][int(np.argmax(np.mean(by_hand, axis=1)))]
    assert np.all((search.cv_results_["mean_test_eer"] <= 0) & (search.cv_results_["mean_test_eer"] > -0.6))
    refitted = search.best_estimator_
    assert search.score(X, SPEAKER, session=SESSION) == refitted.score(X, SPEAKER, SESSION)


@pytest.mark.usefixtures("routing")
def test_the_score_of_a_back_end_is_minus_cllr():
    from sklearn.model_selection import GroupKFold, cross_val_score

    chain = Backend(plda=PLDA(3, 2, tol=1e-3)).set_fit_request(session=True).set_score_request(session=True)
    params = {"session": SESSION, "groups": SPEAKER}
    scores = [
        cross_val_score(model, X, SPEAKER, cv=GroupKFold(3), params=params, scoring=scoring, error_score="raise")
        for model, scoring in (
            (chain, None),
            (chain, metrics.cllr_scorer),
            (Pipeline([("chain", chain)]), None),
            (Pipeline([("chain", chain)]), metrics.cllr_scorer),
        )
    ]
    expected = [
        -held_out_cllr(clone(chain).fit(X[a], SPEAKER[a], session=SESSION[a]), b)
        for a, b in GroupKFold(3).split(X, SPEAKER, SPEAKER)
    ]
    for got in scores:
        np.testing.assert_array_equal(got, expected)
    renamed = clone(chain).set_fit_request(session="call")
    scorer = metrics.cllr_scorer.set_score_request(session="call")
    params = {"call": SESSION, "groups": SPEAKER}
    np.testing.assert_array_equal(
        cross_val_score(renamed, X, SPEAKER, cv=GroupKFold(3), params=params, scoring=scorer), expected
    )
    with pytest.raises(DuopldaError, match="takes session and channel, not speaker"):
        metrics.cllr_scorer.set_score_request(speaker=True)


def test_what_trials_the_scorers_make():
    """Half of the sessions of a speaker enrol, each with each test recording; who has one session only tests."""
    plda = PLDA(3, 2).fit(X, SPEAKER, session=SESSION)
    rows, speaker, session = X[:10], [0, 0, 1, 1, 2, 2, 3, 3, 4, 4], [0, 1, 2, 3, 4, 5, 6, 7, 8, 8]
    scores, labels = metrics.held_out_trials(plda, rows, speaker, session, enrolment=((1, 1),))
    assert (len(scores), labels.sum()) == (4 * 6, 4)
    ratios = plda.llr(rows, rows)
    one_way = [[2 * i, 2 * i + 1] for i in range(4)]
    for score, pair in zip(np.sort(scores[labels]), sorted(ratios[a, b] for a, b in one_way), strict=True):
        np.testing.assert_allclose(score, pair)  # either of a pair may enrol
    assert all(np.isclose(ratios, score).any() for score in scores)
    scores, labels = metrics.held_out_trials(plda, rows, speaker, session)
    assert labels.sum() == 5 * 4  # one for each of the five usual forms of enrolment, which are all the same here
    with pytest.raises(DuopldaError, match="there must be a speaker with two sessions"):
        metrics.held_out_trials(plda, rows, np.arange(10), np.arange(10))
    with pytest.raises(DuopldaError, match="there must be a speaker with two sessions"):
        metrics.held_out_trials(plda, rows, np.zeros(10), np.arange(10))
    with pytest.raises(DuopldaError, match="give the speaker of each row"):
        metrics.cllr_scorer(plda, rows, None, session=session)
    with pytest.raises(DuopldaError, match="StandardScaler makes no trials"):
        metrics.cllr_scorer(StandardScaler(), rows, speaker)


def test_the_scorers_warn_where_sessions_are_forgotten():
    """Without metadata routing, scikit-learn gives sessions to `fit` alone: copies would be target trials."""
    plda = PLDA(3, 2).fit(X, SPEAKER, session=SESSION)
    with pytest.warns(UserWarning, match=r"copies of a recording become target trials.*enable_metadata_routing"):
        metrics.cllr_scorer(plda, X, SPEAKER)
    metrics.cllr_scorer(PLDA(3).fit(X, SPEAKER), X, SPEAKER)  # trained without sessions: nothing to say


def test_the_scorers_take_data_frames_and_pipelines():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(X, columns=[f"e{i}" for i in range(D)])
    pipe = Pipeline([("norm", LengthNorm()), ("plda", PLDA(3, 2))]).fit(frame, SPEAKER, plda__session=SESSION)
    got = metrics.min_cllr_scorer(pipe, frame, pd.Series(SPEAKER), session=SESSION)
    plda = PLDA(3, 2).fit(LengthNorm().fit_transform(X), SPEAKER, session=SESSION)
    trials = metrics.held_out_trials(plda, LengthNorm().fit_transform(X), SPEAKER, SESSION)
    assert got == pytest.approx(-metrics.min_cllr(*trials))
    half = metrics.TrialScorer(metrics.act_dcf, {"p_target": 0.5}, enrolment=((1, 1),))
    assert repr(half) == "TrialScorer(act_dcf, p_target=0.5)"
    trials = metrics.held_out_trials(pipe, frame, SPEAKER, SESSION, enrolment=((1, 1),))
    assert half(pipe, frame, SPEAKER, session=SESSION) == -metrics.act_dcf(*trials, p_target=0.5)


def test_predict_gives_the_ratios_of_pairs_of_recordings():
    """A service that knows `predict` alone sends a matrix, a table or lists: in each row two recordings, or one."""
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(X, columns=[f"e{i}" for i in range(D)])
    for model in (PLDA(3, 2).fit(frame, SPEAKER, SESSION), Backend(plda=PLDA(3, 2)).fit(frame, SPEAKER, SESSION)):
        expected = model.llr(frame[:6], frame[6:12])[range(6), range(6)]
        pairs = np.concatenate([X[:6], X[6:12]], axis=1)
        for both in (pairs, pd.DataFrame(pairs), pairs.tolist(), pairs.reshape(6, 2, D)):
            np.testing.assert_allclose(model.predict(both), expected, rtol=1e-9, atol=1e-12)
        np.testing.assert_array_equal(model.predict(frame), model.transform(frame))
        with pytest.raises(DuopldaError, match="feature names"):
            model.predict(frame.assign(further=0.0))


def test_mlflow_serves_a_back_end(tmp_path):
    mlflow = pytest.importorskip("mlflow")
    skops_io = pytest.importorskip("skops.io")
    backend = Backend(plda=PLDA(3, 2)).fit(X, SPEAKER, session=SESSION)
    names = skops_io.get_untrusted_types(data=skops_io.dumps(backend))
    options = {"serialization_format": "skops", "skops_trusted_types": names}
    mlflow.sklearn.save_model(backend, tmp_path / "model", **options)
    served = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    pairs = np.concatenate([X[:6], X[6:12]], axis=1)
    np.testing.assert_array_equal(served.predict(pairs), backend.predict(pairs))


def test_a_grid_reaches_into_a_back_end():
    from sklearn.model_selection import ParameterGrid

    for given in ParameterGrid({"lda": [None, 3], "plda__n_speaker_factors": [2, 3], "plda__max_iter": [30]}):
        backend = Backend(plda=PLDA(n_session_factors=2, tol=1e-3)).set_params(**given).fit(X, SPEAKER, session=SESSION)
        assert backend.plda_.speaker_loadings_.shape == (given["lda"] or D, given["plda__n_speaker_factors"])


def test_recordings_are_not_weighted():
    plda = PLDA(3, 2).fit(X, SPEAKER, session=SESSION)
    with pytest.raises(DuopldaError, match="sample_weight must be None"):
        plda.score(X, SPEAKER, SESSION, sample_weight=np.ones(len(X)))


# -- recordings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parameters", [{}, {"shrinkage": "auto"}, {"n_session_factors": "auto"}], ids=str)
def test_fit_takes_recordings(parameters):
    """In memory they give the same bits; in chunks, the same model."""
    plda = PLDA(3, tol=1e-4, **parameters).fit(X, SPEAKER, session=SESSION)
    there = clone(plda).fit(Recordings.from_arrays(X, SPEAKER, SESSION))
    assert_same_model(there, plda)
    assert there.n_features_in_ == D
    chunks = Recordings.from_chunks(lambda: [X[:31], X[31:]], SPEAKER, SESSION)
    np.testing.assert_allclose(clone(plda).fit(chunks).log_likelihoods_, plda.log_likelihoods_, rtol=1e-9)
    with pytest.raises(DuopldaError, match="recordings bring their own labels"):
        clone(plda).fit(chunks, SPEAKER)


def test_recordings_have_no_feature_names():
    pd = pytest.importorskip("pandas")
    plda = PLDA(3, 2).fit(pd.DataFrame(X, columns=list("abcde")), SPEAKER, session=SESSION)
    plda.fit(Recordings.from_arrays(X[:, :4], SPEAKER, SESSION))
    assert plda.transform(X[:, :4]).shape == (len(X), 3)


def test_kinds_with_few_recordings_are_shrunk_alike_from_arrays_and_from_chunks():
    """Held-out speakers decide, so that the pass must keep folds before the kinds are known."""
    rng = np.random.default_rng(0)
    channel = np.where(rng.random(len(X)) < 0.2, "rare", "common")
    plda = PLDA(3, 2, tol=1e-4).fit(X, SPEAKER, SESSION, channel)
    assert plda.shrinkage_.channel > 0
    chunks = Recordings.from_chunks(lambda: [X[:31], X[31:]], SPEAKER, SESSION, channel)
    assert PLDA(3, 2, tol=1e-4).fit(chunks).shrinkage_ == plda.shrinkage_


def test_statistics_have_folds_where_something_is_chosen():
    recordings = Recordings.from_arrays(X, SPEAKER, SESSION)
    assert not PLDA().statistics(recordings).folds
    assert len(PLDA(shrinkage="auto", n_folds=3).statistics(recordings).folds) == 3
    assert len(PLDA(n_speaker_factors="auto").statistics(recordings).folds) == 5
    double = PLDA().statistics(recordings, lambda X, channel: 2 * X)
    np.testing.assert_allclose(double.S, 4 * PLDA().statistics(recordings).S, rtol=1e-9)


# -- sessions and factors ----------------------------------------------------------------------------------------------


def test_plain_fit_works_without_a_word(capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plda = PLDA().fit(X, SPEAKER)
    assert capfd.readouterr() == ("", "")
    assert plda.session_loadings_.shape == (D, 0)
    assert plda.speaker_loadings_.shape == (D, D)
    assert_same_model(plda, PLDA(n_session_factors=0).fit(X, SPEAKER))


def test_rank_of_none():
    """Full rank where a session has several recordings, and none at all where none has."""
    assert PLDA().fit(X, SPEAKER, session=SESSION).session_loadings_.shape == (D, D)
    assert PLDA(3).fit(X, SPEAKER, session=SESSION).speaker_loadings_.shape == (D, 3)
    each = np.array([f"s{i}" for i in range(len(X))])
    assert PLDA().fit(X, SPEAKER, session=each).session_loadings_.shape == (D, 0)
    each[1] = each[0]  # one session with two recordings
    assert SPEAKER[0] == SPEAKER[1]
    with pytest.raises(DuopldaError, match="only 1 differences"):  # full rank was meant, and is refused
        PLDA().fit(X, SPEAKER, session=each)


def test_a_session_of_its_own_for_each_recording_is_the_default():
    each = np.arange(len(X))
    plda = PLDA(3, 0).fit(X, SPEAKER)
    assert_same_model(plda, PLDA(3, 0).fit(X, SPEAKER, session=each))
    full = PLDA(3, 2).fit(X, SPEAKER, session=SESSION)
    np.testing.assert_array_equal(full.log_likelihood(X, SPEAKER)[1], full.log_likelihood(X, SPEAKER, each)[1])


def test_sessions_matter():
    a, b = PLDA(3).fit(X, SPEAKER, session=SESSION), PLDA(3).fit(X, SPEAKER)
    assert not np.allclose(a.noise_precision_, b.noise_precision_, rtol=0.1)


def test_more_factors_than_speakers():
    few = np.isin(SPEAKER, np.unique(SPEAKER)[:4])
    plda = PLDA().fit(X[few], SPEAKER[few], session=SESSION[few])
    assert plda.speaker_loadings_.shape == plda.session_loadings_.shape == (D, D)
    assert np.isfinite(plda.score(X, SPEAKER, SESSION))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_fit_statistics():
    stats = Statistics.from_arrays(X, SPEAKER, SESSION)
    for parameters in ({}, {"n_speaker_factors": 3, "n_session_factors": 2, "init": "random", "random_state": 1}):
        a = PLDA(max_iter=8, **parameters).fit(X, SPEAKER, session=SESSION)
        b = PLDA(max_iter=8, **parameters)
        assert b.fit_statistics(stats) is b
        assert_same_model(a, b)
        assert b.n_features_in_ == D
        np.testing.assert_array_equal(a.transform(X), b.transform(X))


def test_fit_statistics_forgets_feature_names():
    pd = pytest.importorskip("pandas")
    plda = PLDA(3, 2).fit(pd.DataFrame(X, columns=list("abcde")), SPEAKER, session=SESSION)
    plda.fit_statistics(Statistics.from_arrays(X[:, :4], SPEAKER, SESSION))
    assert plda.n_features_in_ == 4
    assert plda.transform(X[:, :4]).shape == (len(X), 3)


# -- training, watched -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["fit", "fit_statistics"])
def test_convergence_warning(how):
    plda = PLDA(3, 2, max_iter=2, tol=1e-9)
    given = (X, SPEAKER, SESSION) if how == "fit" else (Statistics.from_arrays(X, SPEAKER, SESSION),)
    with pytest.warns(ConvergenceWarning, match=r"EM did not converge in 2 iterations.*tol=1e-09.*max_iter") as caught:
        getattr(plda, how)(*given)
    assert len(caught) == 1
    assert caught[0].filename == __file__  # it points at the user's line
    gain = np.diff(plda.log_likelihoods_)[-1] / len(X)
    assert f"gained {gain:.2g} nats" in str(caught[0].message)
    assert (plda.n_iter_, plda.converged_) == (2, False)


def test_no_iterations():
    """The start itself, and a warning."""
    with pytest.warns(ConvergenceWarning, match="0 iterations"):
        plda = PLDA(3, 2, max_iter=0).fit(X, SPEAKER, session=SESSION)
    assert (plda.n_iter_, plda.converged_, len(plda.log_likelihoods_)) == (0, False, 1)


def test_tolerance_is_in_nats_per_recording():
    rough, fine = (PLDA(3, 2, tol=tol).fit(X, SPEAKER, session=SESSION) for tol in (1e-2, 1e-8))
    assert rough.n_iter_ < fine.n_iter_
    for plda, tol in ((rough, 1e-2), (fine, 1e-8)):
        gains = np.diff(plda.log_likelihoods_) / len(X)
        assert gains[-1] < tol
        assert (gains[:-1] >= tol).all()


@pytest.mark.parametrize("accelerate", [True, False])
def test_callback(accelerate):
    seen = []
    plda = PLDA(3, 2, accelerate=accelerate, callback=lambda *a: seen.append(a)).fit(X, SPEAKER, session=SESSION)
    assert [i for i, _, _ in seen] == list(range(1, plda.n_iter_ + 1))
    assert [ln for _, ln, _ in seen] == plda.log_likelihoods_[1:].tolist()
    assert all(type(ln) is float for _, ln, _ in seen)
    np.testing.assert_array_equal(seen[-1][2].V, plda.speaker_loadings_)
    for _, ln, model in seen:  # the likelihood is that of the model it comes with
        own = PLDA.from_parameters(model.mu[0], model.V, model.U, model.W[0])
        assert own.log_likelihood(X, SPEAKER, SESSION)[1].sum() == pytest.approx(ln, rel=1e-10)


@pytest.mark.parametrize("answer", [True, np.True_], ids=["True", "numpy's True"])
def test_callback_stops_training(answer):
    """By returning True; that was asked for, so there is no warning."""
    plda = PLDA(3, 2, tol=0, callback=lambda i, ln, model: answer if i == 3 else None).fit(X, SPEAKER, session=SESSION)
    assert (plda.n_iter_, plda.converged_) == (3, False)
    assert len(plda.log_likelihoods_) == 4


def test_callback_that_returns_something_else_goes_on():
    plda = PLDA(3, 2, callback=lambda i, ln, model: False).fit(X, SPEAKER, session=SESSION)
    assert plda.converged_


def test_errors_of_a_callback_are_not_hidden():
    def fail(iteration, ln, model):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        PLDA(3, 2, callback=fail).fit(X, SPEAKER, session=SESSION)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_random_start():
    def fit(random_state):
        plda = PLDA(3, 2, init="random", random_state=random_state, max_iter=3)
        return plda.fit(X, SPEAKER, session=SESSION)

    assert_same_model(fit(5), fit(5))
    assert_same_model(fit(np.random.RandomState(5)), fit(np.random.RandomState(5)))
    traces = [fit(seed).log_likelihoods_[0] for seed in (5, 6, None, None)]
    assert len(set(traces)) == 4
    moments = PLDA(3, 2, max_iter=3).fit(X, SPEAKER, session=SESSION)
    assert moments.log_likelihoods_[0] > max(traces)  # the moment start knows something


def test_random_start_reaches_the_same_optimum():
    a = PLDA(3, 2, tol=1e-9).fit(X, SPEAKER, session=SESSION)
    b = PLDA(3, 2, tol=1e-9, init="random", random_state=0).fit(X, SPEAKER, session=SESSION)
    assert b.score(X, SPEAKER, SESSION) == pytest.approx(a.score(X, SPEAKER, SESSION), abs=1e-5)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_moment_start_needs_no_seed():
    a, b = (PLDA(3, 2, random_state=s, max_iter=3).fit(X, SPEAKER, session=SESSION) for s in (1, 2))
    assert_same_model(a, b)


def test_acceleration_and_minimum_divergence_do_something():
    quick, plain = (PLDA(3, 2, accelerate=a, tol=1e-8).fit(X, SPEAKER, session=SESSION) for a in (True, False))
    assert quick.n_iter_ < plain.n_iter_
    assert quick.score(X, SPEAKER, SESSION) == pytest.approx(plain.score(X, SPEAKER, SESSION), abs=1e-5)
    slow = PLDA(3, 2, accelerate=False, minimum_divergence=False, tol=1e-8, max_iter=5000)
    assert slow.fit(X, SPEAKER, session=SESSION).n_iter_ > plain.n_iter_


# -- ids ---------------------------------------------------------------------------------------------------------------

NUMBER = np.unique(SPEAKER, return_inverse=True)[1]
SESSION_NUMBER = np.unique(SESSION, return_inverse=True)[1]
IDS = {
    "integers": lambda n: 1000 - 7 * n,
    "negative integers": lambda n: 7 * n - 50,
    "small integers": lambda n: (200 - n).astype(np.uint8),
    "numbers as strings": lambda n: (13 * n).astype(str),
    "strings": lambda n: np.array(["zoë", "Ann", "ann", "Bo", ""])[n % 5] + n.astype(str).astype(object),
    "objects": lambda n: np.array([f"p{i}" for i in n], dtype=object),
    "floats": lambda n: 0.5 - n,
    "bytes": lambda n: (13 * n).astype("S"),
    "variable-width strings": lambda n: (13 * n).astype(np.dtypes.StringDType()),
}


@pytest.mark.parametrize("kind", IDS)
def test_ids_are_sorted_as_numpy_sorts(kind):
    speaker, session = IDS[kind](NUMBER), IDS[kind](SESSION_NUMBER + 30)
    plda = PLDA(3, 2).fit(X, speaker, session=session)
    np.testing.assert_allclose(plda.log_likelihoods_, PLDA(3, 2).fit(X, SPEAKER, session=SESSION).log_likelihoods_)
    ids, ln = plda.log_likelihood(X, speaker, session)
    expected = np.unique(speaker)
    assert ids.tolist() == expected.tolist()
    for i, value in zip(ids, ln, strict=True):  # each value with its own id
        of = speaker == i
        assert plda.log_likelihood(X[of], speaker[of], session[of])[1][0] == pytest.approx(value, rel=1e-10)
    enrolled = plda.enroll(X, speaker, session)
    assert enrolled.ids.tolist() == (expected.astype(str) if kind == "bytes" else expected).tolist()
    assert enrolled.find(speaker[:3]).tolist() == np.searchsorted(expected, speaker[:3]).tolist()
    posterior = plda.posterior(X, speaker, session)
    assert posterior.speaker_ids.tolist() == expected.tolist()
    assert posterior.session_ids.tolist() == np.unique(session).tolist()
    owner = dict(zip(session.tolist(), speaker.tolist(), strict=True))
    assert [owner[s] for s in posterior.session_ids.tolist()] == expected[posterior.session_speaker].tolist()


def test_rows_and_columns_of_scores_follow_the_ids():
    plda = PLDA(3, 2).fit(X, SPEAKER, session=SESSION)
    number = 1000 - 7 * NUMBER  # the other way round than the names
    a, b = plda.enroll(X, SPEAKER, SESSION), plda.enroll(X, number, SESSION)
    order = np.argsort([number[np.flatnonzero(i == SPEAKER)[0]] for i in a.ids])
    np.testing.assert_allclose(plda.llr(b, b), plda.llr(a, a)[np.ix_(order, order)], rtol=1e-9, atol=1e-9)


# -- parameters by hand, samples ---------------------------------------------------------------------------------------


def test_from_parameters():
    plda = PLDA(3, 2).fit(X, SPEAKER, session=SESSION)
    again = PLDA.from_parameters(*(getattr(plda, name) for name in PARAMETERS))
    assert (again.n_speaker_factors, again.n_session_factors, again.n_features_in_) == (3, 2, D)
    np.testing.assert_array_equal(again.transform(X), plda.transform(X))
    none = PLDA.from_parameters(plda.mean_, plda.speaker_loadings_, None, plda.noise_precision_)
    assert none.session_loadings_.shape == (D, 0)
    lists = PLDA.from_parameters(*(getattr(plda, name).tolist() for name in PARAMETERS))
    np.testing.assert_array_equal(lists.transform(X), plda.transform(X))


def test_from_parameters_keeps_its_own_copy():
    given = [np.zeros(2), np.eye(2), np.eye(2), np.eye(2)]
    plda = PLDA.from_parameters(*given)
    for array in given:
        array += 7.0
    for name, value in zip(PARAMETERS, (np.zeros(2), np.eye(2), np.eye(2), np.eye(2)), strict=True):
        np.testing.assert_array_equal(getattr(plda, name), value)


def test_sample():
    plda = PLDA(3, 2).fit(X, SPEAKER, session=SESSION)
    drawn, speaker, session = plda.sample(4, sessions=(2, 3), recordings=2, random_state=0)
    again = plda.sample(4, sessions=(2, 3), recordings=2, random_state=0)
    np.testing.assert_array_equal(drawn, again[0])
    assert drawn.shape == (len(speaker), D)
    assert len(np.unique(speaker)) == 4
    assert (np.unique(session, return_counts=True)[1] == 2).all()
    assert not np.array_equal(drawn, plda.sample(4, (2, 3), 2, random_state=1)[0][: len(drawn)])


def test_posterior_probability():
    np.testing.assert_allclose(PLDA.posterior_probability([0.0, np.log(99)], prior=0.01), [0.01, 0.5])
    assert PLDA.posterior_probability(0.0) == pytest.approx(0.01)  # the default prior
    np.testing.assert_array_equal(PLDA.posterior_probability([-2000.0, 2000.0]), [0.0, 1.0])
