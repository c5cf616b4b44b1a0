"""Pictures of scores, models and clusters: DET, Tippett, histograms, Bayes error, reliability, maps, trees.

Scores are natural-log likelihood ratios, and labels are True for a target trial, 1, or "target". Pictures of scores
take `scores, labels`, or one pair of both, or, to compare systems, a dictionary from a name to such a pair (or to
scores, if `labels` are those of all systems). Every function draws into the Axes that it is given, or into a new figure
as wide as a column of print (3.5 in), and returns the Axes; `save` writes its figure. Systems differ in colour (the
Okabe-Ito palette, which colour-blind people can tell apart) and in line style or marker. pyplot is never imported, so
no figure stays open in the program's memory. What the pictures are made of (`tippett_curve`, `thin`,
`variance_directions`, ...) needs no Matplotlib; the HTML pages draw the same curves.
"""

from duoplda.model.summary import VarianceShares, variance_directions
from duoplda.report.plots.clusters import cluster_map, cluster_sizes, dendrogram
from duoplda.report.plots.curves import det_limits, det_ticks, principal_plane, score_range, thin, tippett_curve
from duoplda.report.plots.drawing import OKABE_ITO, save
from duoplda.report.plots.models import likelihood_trace, shrinkage_path, speaker_map, variance_shares
from duoplda.report.plots.scores import (
    bayes_error,
    det,
    ece,
    histogram,
    llr_interval,
    llr_overestimation,
    reliability,
    tippett,
)

__all__ = ["bayes_error", "det", "ece", "histogram", "likelihood_trace", "llr_interval", "llr_overestimation"]
__all__ += ["reliability", "save", "shrinkage_path"]
__all__ += ["OKABE_ITO", "VarianceShares", "det_limits", "det_ticks", "score_range", "thin", "tippett_curve"]
__all__ += ["speaker_map", "tippett", "variance_directions", "variance_shares"]
__all__ += ["cluster_map", "cluster_sizes", "dendrogram", "principal_plane"]
