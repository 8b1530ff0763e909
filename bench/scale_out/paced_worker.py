"""Child process of `bench/scale_out/ray_node_loss.py`: `baton worker` whose scripted model takes its time. Also one of
`gateway_loss.py`.

Run as `python bench/scale_out/paced_worker.py` with the arguments of `baton`.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cli.config import model
from cli.main import run

if __name__ == "__main__":
    model.SCRIPTED_STEPS_PER_S = 40.0
    run()
