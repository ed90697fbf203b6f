"""MLflow's own server app, for uvicorn. Its page opens without the panel of MLflow's assistant,
which covers the charts at the first visit. The panel's button stays.
"""

from pathlib import Path

from mlflow.server import app as pages
from mlflow.server.fastapi_app import app

__all__ = ["app"]

# A key of MLflow's page: whether the panel has opened by itself before.
SEEN = (
    "<script>localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', true)</script>"
)


def index() -> str:
    """The page, with a line before MLflow's own script."""
    text = Path(str(pages.static_folder), "index.html").read_text(encoding="utf-8")
    return text.replace("<head>", f"<head>{SEEN}", 1)


pages.view_functions["serve"] = index
