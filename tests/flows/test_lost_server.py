"""A Prefect server that dies under a run is the machine's failure, worth another run, and no fault of the program."""

import httpx
import pytest
import typer

from flows.commands.output import told_errors


def test_a_lost_server_is_infrastructure(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, told_errors(), httpx.Client() as client:
        client.get("http://127.0.0.1:9/api")
    assert ended.value.exit_code == 75
    told = capsys.readouterr().err
    assert told.startswith("Infra: the Prefect server was lost")
    assert "Traceback" not in told


def test_other_errors_stay_faults_of_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, told_errors():
        raise KeyError("missing")
    assert ended.value.exit_code == 70
    assert "Traceback" in capsys.readouterr().err
