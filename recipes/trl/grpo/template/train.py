"""trl/grpo: a causal language model learns from rewards of its own answers with TRL's own trainer. All weights or LoRA adapters, ZeRO 1-3.

One process a rank, started by `tp`'s launcher. Read it from top to bottom: this is the whole run. What it calls is in `tuneplane.training`.
"""

from tuneplane.training import warning

warning.install()  # first of all: a warning signal that meets no handler kills a rank in mid-import

from tuneplane.training import place, settings, trl_settings  # noqa: E402 - light modules only; torch comes with `connect`
from tuneplane.training.program import Job, run  # noqa: E402


def train(job: Job) -> None:
    """Data, model, trainer, loop, export. Every step of it is the same on all ranks."""
    chosen = settings.parse(job.launch.hyperparams, job.launch.peft, trl_settings.TABLES["grpo"])
    job.connect()

    from tuneplane.training import data, engine, export, model, report, trl_trainer
    from tuneplane.training.loop import Loop
    from tuneplane.training.metrics import Reporter
    from tuneplane.training.saving import Saver
    from tuneplane.training.trl_methods import METHODS

    # 1. Data: one rank tokenises, all ranks map the result; the order of the rows depends on the seed alone.
    folder = model.check_folder(job.launch.input_path("model", job.place))
    tokenizer = model.load_tokenizer(folder)
    train_rows = data.tokens(job, "train", folder, tokenizer, chosen, "prompt", chosen.max_completion_length)
    held_out = data.tokens(job, "validation", folder, tokenizer, chosen, "prompt", chosen.max_completion_length)
    method = METHODS["grpo"](train_rows, held_out, chosen, job.peers, tokenizer.pad_token_id, job.watchdog)
    method.prepare(job, tokenizer)  # the functions of this folder's rewards.py, or the verifier of the environment
    reporter = Reporter(job.place.out_dir, job.peers.first, chosen.log_steps, method.total_steps)
    for line in report.before(job, method):
        reporter.say(line)

    # 2. Model and trainer: the same seed everywhere while new weights are made, then one of its own for each rank's dropout.
    precision = model.choose_precision(chosen, job.device)
    engine.quiet_start()
    if chosen.deterministic:
        engine.be_deterministic()
    engine.seed_all(chosen.seed)
    arguments = trl_trainer.arguments("grpo", chosen, precision, job, method.total_steps)
    network = model.load_model(folder, chosen, engine.weights_dtype(chosen, precision))
    trainer = trl_trainer.trainer(
        "grpo", arguments, network, tokenizer, method.example(train_rows, 0), method.rewards()
    )
    deepspeed = trl_trainer.TrainerEngine(trainer, chosen, precision, job.peers)
    engine.seed_all(chosen.seed + 1 + job.place.rank)

    # 3. Go on from the newest checkpoint that verifies; a checkpoint of another run is refused, never passed over in silence.
    fingerprint = {"model": model.identity(folder, job.launch.inputs["model"].get("files", ())), **method.fingerprint()}
    saver = Saver(job.place.checkpoint_dir, deepspeed, method, job.peers, job.watchdog, fingerprint)
    resumed = saver.resume()
    for line in [*saver.notes, report.start(resumed, method)]:
        reporter.say(line)

    # 4. The steps. A warning ends them early: all ranks save together, and `run` leaves with the code that asks for a requeue.
    started = report.FirstBatch(place.process_age_s)
    loop = Loop(deepspeed, method, chosen, job.peers, saver, reporter, job.watchdog, on_first_step=started.done)
    method.on_first_batch = started.batch
    progress = loop.run(resumed)

    # 5. The artefact: OUT_DIR/final, opened again and compared with the weights in memory before it gets its name.
    artefact = export.export(deepspeed, tokenizer, job.place.out_dir, job.peers, job.watchdog)
    result = report.result(job, chosen, method, deepspeed, progress, resumed, started, artefact)
    reporter.result(result)
    reporter.say(report.end(result))


if __name__ == "__main__":
    run(train, needs=("model",))
