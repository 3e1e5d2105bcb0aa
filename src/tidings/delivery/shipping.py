"""What Spark's workers need and do not have: the code of this package, and the settings.

Third-party packages are not shipped: they must be in the Python of the workers, at the versions of this one.
"""

from __future__ import annotations

from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

from pyspark.sql import SparkSession

import tidings
from tidings.secrets import keyring
from tidings.settings import WORKERS_VARIABLE, Settings, for_workers


def ship_settings(spark: SparkSession, settings: Settings) -> None:
    """Give them to every Python worker that Spark starts for us, in its environment.

    They travel with each task from the driver to the executor. As Spark settings (`spark.executorEnv`) they would be in the
    command line of the driver's JVM, for everybody on that machine to read.
    """
    # Workers elsewhere have neither the file with the master key nor the command that asks for it.
    with_master_key = settings.model_copy(update={"secrets": keyring.resolved(settings.secrets)})
    spark.sparkContext.environment[WORKERS_VARIABLE] = for_workers(with_master_key)


def ship_code(spark: SparkSession, folder: Path) -> None:
    """Executors fetch it from the driver; there it comes before a Tidings that is installed."""
    spark.sparkContext.addPyFile(str(pack(folder)))


def pack(folder: Path) -> Path:
    """The package that is running, with everything in it, as an archive that Python imports from."""
    root = Path(tidings.__file__).parent
    archive = folder / "tidings.zip"
    with ZipFile(archive, "w", ZIP_DEFLATED, strict_timestamps=False) as out:
        for file in sorted(root.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                out.write(file, file.relative_to(root.parent))
    return archive
