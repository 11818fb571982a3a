"""docs/scale.md: its card loads, its commands parse, its arithmetic is that of its own table."""

import re
import shlex
from pathlib import Path

import pytest

from knonik_assets.configs.card import load_card

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/scale.md").read_text()
BLOCK = re.compile(r"^```(\w*) ?(\S*)\n(.*?)^```$", re.M | re.S)
BLOCKS = {name: (language, text) for language, name, text in BLOCK.findall(PAGE)}
RATE = re.compile(r"^\| (\w[\w ,]*?) +\| +([\d.]+) +\| +([\d.]+) +\|", re.M)


def test_the_card_loads(tmp_path):
    (tmp_path / "warehouse.yaml").write_text(BLOCKS["warehouse.yaml"][1])
    card = load_card(tmp_path / "warehouse.yaml")
    assert card.engine == "ray"
    assert card.ray == {"address": "10.0.0.10:6379", "task": {"num_cpus": 1}}
    assert str(card.packed) == "s3://lab-lake/warehouse/packed"
    assert card.ingest_config().preset.rgb.codec == "vp9"


def test_the_commands_are_those_of_ray_and_dagster():
    scripts = pytest.importorskip("ray.scripts.scripts")
    from dagster._cli.job import job_execute_command

    commands = {"ray start": scripts.start, "ray stop": scripts.stop, "dagster job execute": job_execute_command}
    seen = set()
    for name in ("cluster", "run"):
        for line in BLOCKS[name][1].splitlines():
            words = shlex.split(line)
            (command,) = (each for each in commands if words[: len(each.split())] == each.split())
            arguments = words[len(command.split()) :]
            with commands[command].make_context(command, arguments) as context:
                assert context.params
            seen.add(command)
    assert seen == set(commands)


def test_the_hours_follow_from_the_rates():
    """Every row of the second table: hours = frames / (rate x cores) / 3600, as the page says."""
    rates = {what: float(rate) for what, rate, _ in RATE.findall(PAGE)}
    rows = re.findall(r"^\| (\w[\w ,]*?) +\| ([\d.]+) million +\| (\d+) +\| ([\d.]+) +\|", PAGE, re.M)
    assert len(rows) >= 4
    for what, millions, cores, hours in rows:
        assert float(hours) == pytest.approx(float(millions) * 1e6 / rates[what] / int(cores) / 3600, rel=0.02), what
