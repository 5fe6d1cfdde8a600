"""Other tools' files: read as recipes, checked before they run, written from plans. A file for each tool."""
