"""The rate of new rows that are trained alone."""

from model.config.train import TrainConfig


def test_new_rows_alone_have_a_rate_of_their_own_unless_one_is_set() -> None:
    def rate(**values: object) -> float:
        return TrainConfig.model_validate(values).schedule.peak_lr

    assert rate() == 0.002
    assert rate(trainable="new_rows") == rate(trainable="new_rows", schedule={"kind": "constant"}) == 0.005
    assert rate(trainable="new_rows", schedule={"peak_lr": 0.001}) == 0.001
    whole = TrainConfig.model_validate({"trainable": "new_rows"})
    assert TrainConfig.model_validate(whole.model_dump(mode="json")) == whole
