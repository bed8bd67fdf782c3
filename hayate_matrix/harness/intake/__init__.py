"""Facts become requests, commands or nothing: taken once (`accept`), decided one by one (`batch`), with their words (`versions`)."""

from hayate_matrix.harness.intake.accept import Intake
from hayate_matrix.harness.intake.batch import Accepted

__all__ = ["Accepted", "Intake"]
