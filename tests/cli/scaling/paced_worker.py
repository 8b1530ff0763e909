"""`baton worker` whose scripted model takes its time, so that streams are alive for seconds."""

from cli.config import model

model.SCRIPTED_STEPS_PER_S = 40.0

if __name__ == "__main__":
    from cli.main import run

    run()
