"""Workers on several machines: a Ray cluster whose nodes are processes of this machine."""
