"""The order of the gallery: what this package is about, then what builds on it; pages that are not named come last."""

ORDER = (
    "copies_are_not_sessions",
    "from_audio",
    "enrolment",
    "calibration",
    "tippett_and_bayes_error",
    "case",
    "kinds_of_channels",
    "few_speakers",
    "adaptation",
    "score_normalization",
    "clustering",
    "diarization",
    "known_voices",
    "million_trials",
    "shards",
    "torch_tensors",
    "real_speech",
)


class Order:
    """A sort key, as sphinx-gallery asks for it: made with the folder, called with the name of a file."""

    def __init__(self, folder: str):
        self.folder = folder

    def __call__(self, filename: str) -> tuple[int, str]:
        name = filename.removeprefix("plot_").removesuffix(".py")
        return (ORDER.index(name) if name in ORDER else len(ORDER), name)
