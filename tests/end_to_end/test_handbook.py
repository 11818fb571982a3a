"""Loader snippets of other people's pages run as they stand: ``KNONIK_HANDBOOK`` names a folder of plain text (*.txt).

A snippet is the longest run of lines that is Python, or a YAML block ``knonik:``. Its paths exist where it is run: a
dataset stands at every manifest that it names. Pieces of a configuration are put over a small one.
"""

import ast
import os
import re
import urllib.request
from pathlib import Path

import pytest

from knonik_loader import ShardedDataLoader, from_config
from knonik_loader.config_models import LoaderConfig
from tests.support.packed import write_packed

HANDBOOK = os.environ.get("KNONIK_HANDBOOK")
START = re.compile(r"(from |import |def |loader_cfg|datasets = |offsets = |[A-Z]+ = |\{$|batch\[)")
OURS = re.compile(r"loader_cfg|ShardedDataLoader\(|batch\[|^\{")
MANIFEST = re.compile(r'"(/[\w./-]+)/hlp_manifest\.json"')
STEPS = re.compile(r'batch\["(\w+)"\] +# \(B, +(\d+)')
BLOCK = re.compile(r"^knonik:\n(?:(?:  .*)?\n)+", re.M)
MOST_LINES = 80


def snippets(text):
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        end = longest(lines, at) if START.match(lines[at]) else at
        code = "\n".join(lines[at:end]).strip()
        if OURS.search(code):
            yield code
        at = max(end, at + 1)


def longest(lines, start):
    for end in range(min(len(lines), start + MOST_LINES), start, -1):
        try:
            ast.parse("\n".join(lines[start:end]))
        except SyntaxError:
            continue
        return end
    return start


def found():
    pages = sorted(Path(HANDBOOK).glob("*.txt")) if HANDBOOK else []
    texts = [(page.stem, page.read_text()) for page in pages]
    python = [
        (f"{name}:{number}", code) for name, text in texts for number, code in enumerate(snippets(text)) if whole(code)
    ]
    blocks = [(name, match.group()) for name, text in texts for match in BLOCK.finditer(text)]
    return python, blocks


def whole(code):
    """About the loader, and without a piece that the reader is to fill in."""
    tree = ast.parse(code)
    first = tree.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Dict):
        keys = {getattr(key, "value", None) for key in first.value.keys}
        return keys <= LoaderConfig.model_fields.keys()
    given = [each for node in ast.walk(tree) if isinstance(node, ast.Call) for each in node.args]
    return not any(isinstance(each, ast.Constant) and each.value is ... for each in given)


PYTHON, YAML = found()


def test_there_is_something_to_run():
    if not HANDBOOK:
        pytest.skip("KNONIK_HANDBOOK is not set")
    assert len(PYTHON) + len(YAML) > 0


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    """Manifest's folder in a snippet → folder of a dataset; one for each profile."""
    folder = tmp_path_factory.mktemp("handbook")
    sizes = {"training_fast": (480, 640), "training_compressed": (80, 96), "compact_video": (80, 96)}
    keys = {"camera_names": ["cam_high"], "cameras": 1, "fps": 50.0, "depth": False}
    made = {name: write_packed(folder / name, (24,), name, size=size, **keys) for name, size in sizes.items()}

    def dataset(name):
        return made[
            "training_fast" if "kimg" in name else "training_compressed" if "kdelta" in name else "compact_video"
        ]

    return dataset


@pytest.fixture
def cloud(datasets, s3_server, s3):
    """The buckets that a snippet names, with a dataset below each prefix."""

    def put(code):
        for bucket, prefix in re.findall(r'"s3://([\w-]+)/([\w/-]+)/hlp_manifest\.json"', code):
            urllib.request.urlopen(urllib.request.Request(f"{s3_server}/{bucket}", method="PUT"), timeout=30).close()
            for path in datasets(prefix).folder.iterdir():
                url = f"{s3_server}/{bucket}/{prefix}/{path.name}"
                request = urllib.request.Request(url, data=path.read_bytes(), method="PUT")
                request.add_header("Content-Type", "application/octet-stream")
                urllib.request.urlopen(request, timeout=30).close()

    return put


@pytest.mark.parametrize("code", [code for _, code in PYTHON], ids=[name for name, _ in PYTHON])
def test_a_snippet_of_python_runs(code, datasets, cloud):
    if "torch" in code or ".float()" in code:
        pytest.importorskip("torch")
    cloud(code)
    code = MANIFEST.sub(lambda match: f'"{datasets(match.group(1)).manifest}"', code)
    if "import" in code:
        exec(compile(code, "snippet", "exec"), {"__name__": "snippet"})
        return
    base = {"decode_mode": "random_access", "hlp_manifest": str(datasets("").manifest), "chunk_len": 16}
    base |= {"batch_size": 4, "framework": "numpy", "fs_type": "local", "fs_params": {"root": "/"}}
    space = {"loader_cfg": dict(base), "true": True, "false": False, "null": None}
    later = []
    for statement in ast.parse(code).body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Dict):
            space["loader_cfg"] |= eval(compile(ast.Expression(statement.value), "snippet", "eval"), space)
        elif isinstance(statement, ast.Expr):
            later.append(statement.value)
        else:
            exec(compile(ast.Module([statement], []), "snippet", "exec"), space)
    given = space["loader_cfg"]
    assert given.keys() <= LoaderConfig.model_fields.keys()
    with ShardedDataLoader(loader_cfg=base | given, stream_cfg={}, dataset_name="my_dataset") as loader:
        space["batch"] = next(iter(loader))
    for each in later:
        eval(compile(ast.Expression(each), "snippet", "eval"), space)
    for key, steps in STEPS.findall(code):
        assert space["batch"][key].shape[1] == int(steps), key
    if given.get("framework") == "torch":
        assert type(space["batch"]["rgb_cam_high"]).__module__ == "torch"


@pytest.mark.parametrize(
    "block", [block for _, block in YAML], ids=[f"{name}-{at}" for at, (name, _) in enumerate(YAML)]
)
def test_a_block_of_yaml_makes_a_loader(block, datasets):
    pytest.importorskip("torch")
    yaml = pytest.importorskip("yaml")
    keys = yaml.safe_load(block.replace("${max_steps}", "4000"))["knonik"]
    profile = {"kimg": "kimg", "kdelta": "kdelta"}.get(keys.get("payload"), "")
    with from_config(keys, hlp_manifest=str(datasets(profile).manifest), chunk_len=4, batch_size=4) as loader:
        batch = next(iter(loader))
    assert batch["rgb_cam_high"].shape[:2] == (4, 4)
    if keys.get("pad_missing"):
        assert "action_valid_mask" in batch
    if "max_steps" in keys:
        assert len(loader) == keys["max_steps"]
