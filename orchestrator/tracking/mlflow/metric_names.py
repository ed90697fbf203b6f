"""Record room: every metric that is recorded, by name. `dashboards/` shows each of them.

What stands before the slash becomes a section of charts in MLflow. Names that people know from
MaxText are taken as they are.
"""

from typing import get_args

from orchestrator.types.report import Badput, PredictionKind

STEP_TIME = "perf/step_time_seconds"
MFU = "perf/mfu"
MFU_PREDICTED = "perf/mfu_predicted"
STEP_TIME_PREDICTED = "perf/step_time_seconds_predicted"
TFLOPS = "perf/per_device_tflops_per_sec"
TOKENS = "perf/per_device_tokens_per_sec"
DATA_WAIT = "perf/data_wait_seconds"
CHECKPOINT_WAIT = "perf/checkpoint_wait_seconds"
MEASURED_HBM = "perf/peak_hbm_gib"
LOSS = "learning/loss"
GRAD_NORM = "learning/grad_norm"
LEARNING_RATE = "learning/lr"
# A trainer's own metrics keep their names, in a section of their own.
TRAINER = "trainer/"

OF_STEPS = (
    STEP_TIME, STEP_TIME_PREDICTED, MFU, MFU_PREDICTED, TFLOPS, TOKENS, DATA_WAIT, CHECKPOINT_WAIT,
    MEASURED_HBM, LOSS, GRAD_NORM, LEARNING_RATE,
)  # fmt: skip

PODS, CHIPS = "plan/pods", "plan/chips"
BATCH_TOKENS = "plan/batch_tokens"
MFU_ROOFLINE = "predicted/mfu_roofline"
MFU_EXPECTED = "predicted/mfu_expected"
MFU_UNOVERLAPPED = "predicted/mfu_unoverlapped"
STEP_TIME_LOWER = "predicted/step_time_seconds_lower"
STEP_TIME_EXPECTED = "predicted/step_time_seconds_expected"
STEP_TIME_UNOVERLAPPED = "predicted/step_time_seconds_unoverlapped"
TOKENS_PER_S_UPPER = "predicted/tokens_per_second_upper"
PREDICTED_HBM = "predicted/peak_hbm_gib"

OF_PLANS = (
    PODS, CHIPS, BATCH_TOKENS, MFU_ROOFLINE, MFU_EXPECTED, MFU_UNOVERLAPPED, STEP_TIME_LOWER,
    STEP_TIME_EXPECTED, STEP_TIME_UNOVERLAPPED, TOKENS_PER_S_UPPER, PREDICTED_HBM,
)  # fmt: skip

PEAK_HBM = "proof/peak_hbm_gib"
HBM_MARGIN = "proof/hbm_margin_gib"
COMPILE_TIME = "proof/compile_seconds"

OF_PROOFS = (PEAK_HBM, HBM_MARGIN, COMPILE_TIME)

MEDIAN_MFU = "summary/mfu"
MEDIAN_STEP_TIME = "summary/step_time_seconds"
TOKENS_PER_S = "summary/tokens_per_second"
FINAL_LOSS = "summary/loss"
GOODPUT = "summary/goodput"
# The median step over the predicted one: 1 is as predicted, 2 is twice as long.
OVER_PREDICTED: dict[PredictionKind, str] = {
    against: f"summary/step_time_over_{against}" for against in get_args(PredictionKind)
}
BADPUT: dict[Badput, str] = {cause: f"summary/badput_{cause}_seconds" for cause in get_args(Badput)}

OF_ENDINGS = (
    MEDIAN_MFU, MEDIAN_STEP_TIME, *OVER_PREDICTED.values(), TOKENS_PER_S, FINAL_LOSS, GOODPUT,
    *BADPUT.values(),
)  # fmt: skip

ALL = (*OF_STEPS, *OF_PLANS, *OF_PROOFS, *OF_ENDINGS)
