"""MLflow's own web application over a SQLite file, in one process: a server that starts fast.

python -m tests.mlflow_server DATABASE ARTIFACTS PORT
"""

import os
import sys
import warnings


def main(database: str, artifacts: str, port: str) -> None:
    warnings.simplefilter("ignore")
    os.environ["_MLFLOW_SERVER_FILE_STORE"] = f"sqlite:///{database}"
    os.environ["_MLFLOW_SERVER_ARTIFACT_ROOT"] = artifacts
    from mlflow.server import app  # noqa: PLC0415  it reads the environment
    from werkzeug.serving import make_server  # noqa: PLC0415

    make_server("127.0.0.1", int(port), app, threaded=True).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
