"""Settings by the headings under which the help shows them."""
