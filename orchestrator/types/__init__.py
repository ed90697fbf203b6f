"""The stations of a run: frozen dataclasses of plain values. This room imports no other room."""
