"""Child process of `bench/scale_out/ray_node_loss.py`: `baton worker` whose scripted model takes its time."""

from cli.config import model
from cli.main import run

if __name__ == "__main__":
    model.SCRIPTED_STEPS_PER_S = 40.0
    run()
