"""The files that docs/deploy.md shows are what Dagster and systemd take."""

import configparser
import re
import shlex
from pathlib import Path

import click
import pytest
import sqlalchemy
import yaml

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w+) ?([^\n]*)\n(.*?)^```$", re.M | re.S)
BLOCKS = [match.groups() for match in BLOCK.finditer((ROOT / "docs" / "deploy.md").read_text())]
UNITS = {name: text for language, name, text in BLOCKS if language == "ini" and name.endswith(".service")}
ENV = next(text for _, name, text in BLOCKS if name == "knonik.env")
SETTINGS = dict(line.split("=", 1) for line in ENV.splitlines())


def settings_file():
    """The page's dagster.yaml, its pieces put together."""
    return "".join(text for _, name, text in BLOCKS if name.startswith("dagster.yaml"))


def test_there_is_something_to_check():
    assert set(UNITS) == {"knonik-code.service", "knonik-web.service", "knonik-daemon.service"}
    assert {name for language, name, _ in BLOCKS if language == "yaml"} == {
        "dagster.yaml",
        "dagster.yaml compute_logs",
        "workspace.yaml",
    }


@pytest.mark.parametrize("own", [True, False], ids=["one machine", "server"])
def test_dagster_takes_the_instance_settings(own, tmp_path, monkeypatch):
    """By the schema of the instance, and by the schema of every class that the file names."""
    pytest.importorskip("dagster_postgres")
    from dagster._config import process_config, resolve_to_config_type
    from dagster._core.instance.ref import InstanceRef

    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    text = (ROOT / "dagster_home" / "dagster.yaml").read_text() if own else settings_file()
    (tmp_path / "dagster.yaml").write_text(text)
    ref = InstanceRef.from_dir(str(tmp_path))
    named = {
        "run_coordinator": ref.run_coordinator_data,
        "compute_logs": ref.compute_logs_data,
        "storage": ref.storage_data,
        "run_launcher": ref.run_launcher_data,
        "scheduler": ref.scheduler_data,
    }
    classes, settings = {}, {}
    for what, data in named.items():
        if data is None:
            continue
        made = getattr(__import__(data.module_name, fromlist=[data.class_name]), data.class_name)
        result = process_config(resolve_to_config_type(made.config_type()), data.config_dict)
        assert result.success, (what, [error.message for error in result.errors])
        classes[what], settings[what] = data.class_name, result.value
    if own:
        assert classes["run_coordinator"] == "DefaultRunCoordinator"
    else:
        assert classes["run_coordinator"] == "QueuedRunCoordinator"
        assert classes["compute_logs"] == "S3ComputeLogManager"
        assert classes["storage"] == "DagsterPostgresStorage"
        from dagster_postgres.utils import pg_url_from_config

        url = pg_url_from_config(settings["storage"])
        assert sqlalchemy.create_engine(url).dialect.driver == "psycopg2"  # installed, and nobody is called yet


def test_a_wrong_setting_would_be_seen(tmp_path):
    from dagster._core.errors import DagsterInvalidConfigError
    from dagster._core.instance.ref import InstanceRef

    (tmp_path / "dagster.yaml").write_text(settings_file().replace("max_retries: 1", "max_retriess: 1"))
    with pytest.raises(DagsterInvalidConfigError, match="max_retriess"):
        InstanceRef.from_dir(str(tmp_path))


def test_dagster_takes_the_workspace(tmp_path):
    from dagster._core.workspace.load import location_origins_from_yaml_paths

    path = tmp_path / "workspace.yaml"
    path.write_text(next(text for _, name, text in BLOCKS if name == "workspace.yaml"))
    (origin,) = location_origins_from_yaml_paths([str(path)])
    code = shlex.split(parsed("knonik-code.service")["Service"]["ExecStart"])
    assert (origin.location_name, origin.host, str(origin.port)) == ("knonik", option(code, "-h"), option(code, "-p"))


@pytest.mark.parametrize("name", sorted(UNITS))
def test_the_units_start_commands_that_exist(name, tmp_path):
    unit = parsed(name)
    assert set(unit.sections()) == {"Unit", "Service", "Install"}
    assert unit["Service"]["EnvironmentFile"] == "/srv/knonik/knonik.env"
    (tmp_path / "workspace.yaml").touch()
    program, *words = shlex.split(unit["Service"]["ExecStart"].replace("/srv/knonik/home", str(tmp_path)))
    command, words = command_of(Path(program).name, words)
    context = command.make_context(name, list(words))  # parses the options, and would refuse unknown ones
    assert context.params


@pytest.mark.parametrize("name", sorted(UNITS))
def test_the_units_wait_for_units_that_exist(name):
    unit = parsed(name)["Unit"]
    wanted = " ".join(unit.get(key, "") for key in ("After", "Wants")).split()
    assert {each for each in wanted if each.startswith("knonik")} <= set(UNITS)


def test_the_settings_name_every_variable_that_is_asked_for():
    asked = set(re.findall(r"\{env: (\w+)\}", settings_file()))
    assert asked
    assert asked <= set(SETTINGS)


def test_the_page_keeps_what_the_single_machine_has():
    """Pools and telemetry of the page are those of the settings that the repository ships."""
    own, page = (yaml.safe_load(text) for text in ((ROOT / "dagster_home/dagster.yaml").read_text(), settings_file()))
    for key in ("telemetry", "nux"):
        assert page[key] == own[key]
    assert page["concurrency"]["pools"] == own["concurrency"]["pools"]


def parsed(name):
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str
    unit.read_string(UNITS[name])
    return unit


def option(words, name):
    return words[words.index(name) + 1]


def command_of(program, words):
    """The click command that a program's words lead to, and the words that are its own."""
    if program == "dagster-webserver":
        from dagster_webserver.cli import dagster_webserver as command
    elif program == "dagster-daemon":
        from dagster._daemon.cli import create_dagster_daemon_cli

        command = create_dagster_daemon_cli()
    else:
        assert program == "dagster"
        from dagster._cli import create_dagster_cli

        command = create_dagster_cli()
    while isinstance(command, click.Group):
        command, words = command.commands[words[0]], words[1:]
    return command, words
