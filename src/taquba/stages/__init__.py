"""Layer 6: workflows as classes, with a typed method for each stage."""

from taquba.stages._call import Call as Call
from taquba.stages._stage import BoundStage as BoundStage
from taquba.stages._stage import stage as stage
from taquba.stages._stages import Stages as Stages

__all__ = ["BoundStage", "Call", "Stages", "stage"]
