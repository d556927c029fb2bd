"""Where rows come from."""

from penstock.connectors.sources.files import FileSource
from penstock.connectors.sources.generator import GeneratorSource
from penstock.connectors.sources.rows import RowsSource

__all__ = ["FileSource", "GeneratorSource", "RowsSource"]
