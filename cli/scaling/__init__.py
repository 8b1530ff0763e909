"""Workers on the machines of a Ray cluster: how many there should be, and who starts and replaces them."""
