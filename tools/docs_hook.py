"""What lies outside docs/ becomes pages of the site: examples with their source, CONTRIBUTING, CHANGELOG.

    [examples/classifier.py](../examples/classifier.py)   →   a page with the file's own words and its code

So that links in docs/ lead somewhere both in the repository and on the site. mkdocs calls the functions (`hooks:` in
mkdocs.yml).
"""

import ast
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
OUTSIDE = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}


def examples() -> list[Path]:
    return sorted(path for path in (ROOT / "examples").glob("*.py") if path.name != "__init__.py")


def page_name(path: Path) -> str:
    """All pages lie in one folder, as the scripts that they load are found beside them."""
    return f"example_{path.stem}.md"


def on_config(config: Any) -> Any:
    """Put the pages into the menu."""
    config["nav"].insert(2, {"Examples": [page_name(path) for path in examples()]})
    project = next(section["Project"] for section in config["nav"] if "Project" in section)
    project += [{"Contributing": "contributing.md"}, {"Changes": "changelog.md"}]
    return config


def on_files(files: Files, config: Any) -> Files:
    for path in examples():
        files.append(File.generated(config, page_name(path), content=page_of(path)))
    for name, page in OUTSIDE.items():
        content = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, page, content=content))
    return files


def page_of(path: Path) -> str:
    """An example as a page: what it says of itself, then the rest of the file."""
    source = path.read_text(encoding="utf-8")
    opening = ast.get_docstring(ast.parse(source)) or ""
    rest = source.split('"""', 2)[2].strip()
    title = " ".join(opening.split("\n\n")[0].split()).split(":")[0].rstrip(".")
    return f"# {title}\n\n{opening}\n\n`examples/{path.name}`:\n\n```python\n{rest}\n```\n"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to files outside docs/ lead to their pages; the first page has no menu at its sides."""
    if page.file.src_uri == "index.md":
        page.meta["hide"] = ["navigation", "toc"]
    markdown = re.sub(r"\]\(\.\./examples/(\w+)\.py\)", r"](example_\1.md)", markdown)
    for name, target in OUTSIDE.items():
        markdown = markdown.replace(f"](../{name})", f"]({target})")
    return markdown
