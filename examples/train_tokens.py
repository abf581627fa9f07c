"""Train a language model on packed rows, be killed twice, and resume on other numbers of processes.

    python examples/train_tokens.py

1. Shakespeare's plays (examples/data) become JSON Lines, one document per speech, and then a ragged
   Zarr array of tokens, made by a tokenizer that is trained here.
2. The speeches are packed into rows of one length, by Grain's packers and by Windrow's plan. A table
   shows how full the rows are.
3. A small transformer is trained in JAX, once on one process without a stop, and once on two
   processes that are killed, then on one that is killed, then on four. Both trainings must have
   the same global batches, and the same loss within float tolerance.
4. Three processes evaluate the model on speeches that were held out, each speech exactly once.

Everything lies in a folder that is removed at the end. The processes are copies of this program on
this machine, which exchange gradients through the program that started them.
"""

import argparse
import contextlib
import dataclasses
import functools
import itertools
import json
import math
import multiprocessing
import os
import pathlib
import signal
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import numpy.typing as npt

import windrow
from windrow import converters
from windrow.sources import RaggedDataSource

try:
    import jax
    import jax.numpy as jnp
    from jax.flatten_util import ravel_pytree
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
except ImportError as error:
    raise windrow.errors.missing_extra("examples/train_tokens.py", "examples") from error

# Several processes cannot share one accelerator.
jax.config.update("jax_platforms", "cpu")  # type: ignore[no-untyped-call]

PLAYS = pathlib.Path(__file__).parent / "data" / "shakespeare.txt"
VOCABULARY, END = 2000, "<|end|>"
SEED = 0

ROW_TOKENS, BATCH = 256, 16
SAVE_EVERY = 5  # steps
# Processes, and the share of the steps after which they are killed, or done.
RUNS = ((2, 0.37), (1, 0.7), (4, 1))
TOLERANCE = 1e-3  # of losses; the sums of gradients are rounded in another order

HELD_OUT = 250  # the last speeches
EVALUATORS, EVALUATION_BATCH = 3, 24

WIDTH, HEADS, LAYERS = 64, 4, 2
RATE = 5e-3

Array = npt.NDArray[Any]
Batch = dict[str, Array]


# --- 1. the data -------------------------------------------------------------------------------------


def speeches_of(plays: pathlib.Path) -> list[str]:
    """The speeches, with the names of their speakers; an empty line ends a speech."""
    return plays.read_text(encoding="utf-8").strip().split("\n\n")


def tokenizer_of(speeches: Sequence[str]) -> Any:
    """Train a byte-level BPE tokenizer on the speeches."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(speeches, trainer)
    return tokenizer


def write_tokens(folder: pathlib.Path) -> pathlib.Path:
    """Write the speeches as JSON Lines, a tokenizer, and the tokens; return the array of tokens."""
    speeches = speeches_of(PLAYS)
    lines = [json.dumps({"number": at, "text": text}) for at, text in enumerate(speeches)]
    (folder / "speeches.jsonl").write_text("\n".join(lines), encoding="utf-8")
    tokenizer_of(speeches).save(str(folder / "tokenizer.json"))
    converters.json_lines_to_zarr(
        folder / "speeches.jsonl",
        folder / "speeches",
        field="text",
        tokenizer=folder / "tokenizer.json",
        end_token=END,
        progress=False,
    )
    return folder / "speeches" / "tokens"


# --- 2. how full rows are ----------------------------------------------------------------------------


def fills(tokens: pathlib.Path, row_tokens: int) -> dict[str, float]:
    """Real tokens per cell of the rows of one epoch, by packer; the speeches come in one order.

    Grain's packers refuse documents that are longer than a row, so they get them in pieces.
    """
    # Here, since the processes that train would spend two seconds on it.
    import grain
    from grain.experimental import BestFitPackIterDataset, FirstFitPackIterDataset

    chain = windrow.MapDataset.source(RaggedDataSource(tokens)).shuffle(SEED)
    documents = list(chain)
    pieces = [
        {"tokens": document[start : start + row_tokens]}
        for document in documents
        for start in range(0, len(document), row_tokens)
    ]
    real = sum(map(len, documents))
    in_this_thread = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    found = {}
    for name, packer in (("first", FirstFitPackIterDataset), ("best", BestFitPackIterDataset)):
        for open_rows in (8, 64):
            rows = packer(
                grain.MapDataset.source(pieces).to_iter_dataset(in_this_thread),
                length_struct={"tokens": row_tokens},
                num_packing_bins=open_rows,
            )
            found[f"Grain, {name} fit, {open_rows} open rows"] = real / row_tokens / len(list(rows))
    found["Windrow, planned"] = real / row_tokens / len(list(chain.pack(row_tokens)))
    found["as few rows as possible"] = real / row_tokens / math.ceil(real / row_tokens)
    return found


# --- 3. training on processes ------------------------------------------------------------------------


def training_batches(tokens: pathlib.Path) -> windrow.IterDataset[Batch]:
    """Global batches of packed rows, `(BATCH, ROW_TOKENS)`, under the names that MaxText uses."""
    documents = windrow.MapDataset.source(RaggedDataSource(tokens))[:-HELD_OUT]
    return documents.shuffle(SEED).repeat().pack(ROW_TOKENS, names="maxtext").batch(BATCH)


def initial() -> Any:
    """Initial parameters of the transformer."""
    keys = iter(jax.random.split(jax.random.key(SEED), 1 + 4 * LAYERS))

    def matrix(rows: int, columns: int) -> Any:
        return jax.random.normal(next(keys), (rows, columns)) / rows**0.5

    sizes = {"look": 3 * WIDTH, "join": WIDTH, "widen": 4 * WIDTH}
    layers = [
        {name: matrix(WIDTH, size) for name, size in sizes.items()}
        | {"narrow": matrix(4 * WIDTH, WIDTH)}
        for _ in range(LAYERS)
    ]
    return {"tokens": 0.02 * jax.random.normal(next(keys), (VOCABULARY, WIDTH)), "layers": layers}


def losses_of(params: Any, batch: Batch) -> Any:
    """The sum of the cross entropies of the targets of each row, float32 `(rows,)`.

    A token sees the tokens of its own segment that are not after it. Targets of segment 0 do not
    count.
    """
    segments, length = batch["inputs_segmentation"], batch["inputs"].shape[1]
    sees = (segments[:, :, None] == segments[:, None, :]) & jnp.tri(length, dtype=bool)
    rates = 1e-4 ** (jnp.arange(WIDTH // 2) / (WIDTH // 2))
    angles = batch["inputs_position"][..., None] * rates
    places = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    x = params["tokens"][batch["inputs"]] + 0.02 * places
    for layer in params["layers"]:
        heads = (normal(x) @ layer["look"]).reshape(*x.shape[:2], 3, HEADS, WIDTH // HEADS)
        query, key, value = jnp.moveaxis(heads, 2, 0)
        weights = jnp.einsum("bqhd,bkhd->bhqk", query, key) / (WIDTH // HEADS) ** 0.5
        weights = jax.nn.softmax(jnp.where(sees[:, None], weights, -1e9))
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(x.shape)
        x = x + mixed @ layer["join"]
        x = x + jax.nn.gelu(normal(x) @ layer["widen"]) @ layer["narrow"]
    scores = jax.nn.log_softmax(normal(x) @ params["tokens"].T)
    losses = -jnp.take_along_axis(scores, batch["targets"][..., None].astype(int), axis=-1)[..., 0]
    return jnp.sum(jnp.where(batch["targets_segmentation"] > 0, losses, 0), axis=1)


def normal(x: Any) -> Any:
    return x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


@dataclasses.dataclass
class Saved:
    """What a run saves: all that a process of the next run needs, whatever their number."""

    weights: Array  # the parameters as one vector
    mean: Array
    square: Array
    step: int
    state: dict[str, Any] | None  # of the iterator of batches

    @classmethod
    def load(cls, path: pathlib.Path) -> "Saved":
        """Load what was saved, or begin."""
        if not path.exists():
            weights = np.asarray(ravel_pytree(initial())[0])
            return cls(weights, np.zeros_like(weights), np.zeros_like(weights), 0, None)
        with np.load(path) as arrays:
            weights, mean, square = (arrays[name] for name in ("weights", "mean", "square"))
            state = json.loads(str(arrays["state"]))
            return cls(weights, mean, square, int(arrays["step"]), state)

    def save(self, path: pathlib.Path) -> None:
        """Replace the file in one step: a process that is killed leaves the one before."""
        unfinished = path.with_suffix(".unfinished.npz")
        arrays: dict[str, Any] = vars(self) | {"state": json.dumps(self.state)}
        np.savez(unfinished, **arrays)
        os.replace(unfinished, path)

    def move(self, slope: Array) -> None:
        """One step of Adam."""
        self.step += 1
        self.mean = 0.9 * self.mean + 0.1 * slope
        self.square = 0.99 * self.square + 0.01 * slope**2
        mean, square = self.mean / (1 - 0.9**self.step), self.square / (1 - 0.99**self.step)
        self.weights = self.weights - RATE * mean / (np.sqrt(square) + 1e-8)


def train_shard(
    link: Connection,
    index: int,
    count: int,
    tokens: pathlib.Path,
    saved_at: pathlib.Path,
    stop: int,
) -> None:
    """Train as process `index` of `count`, from what was saved up to step `stop`.

    In each step it sends the checksums of its rows, the number of their targets, and loss and slope
    summed over these, and receives the mean slope over the targets of all processes.
    """
    _, params_of = ravel_pytree(initial())
    slope_of = jax.jit(
        jax.value_and_grad(lambda weights, batch: losses_of(params_of(weights), batch).sum())
    )
    saved = Saved.load(saved_at)
    with iter(training_batches(tokens).shard(index, count)) as batches:
        if saved.state is not None:
            batches.set_state(saved.state)
        for batch in itertools.islice(batches, stop - saved.step):
            loss, slope = slope_of(saved.weights, batch)
            targets = np.count_nonzero(batch["targets_segmentation"])
            link.send((checksums(batch), targets, float(loss), np.asarray(slope)))
            saved.move(link.recv())
            if index == 0 and (saved.step % SAVE_EVERY == 0 or saved.step == stop):
                saved.state = batches.get_state()  # all shards have the same
                saved.save(saved_at)


def checksums(batch: Batch) -> list[int]:
    """A checksum of each row, over all of its arrays."""
    rows = zip(*batch.values(), strict=True)
    return [zlib.crc32(b"".join(part.tobytes() for part in row)) for row in rows]


@contextlib.contextmanager
def processes(
    count: int, work: Callable[..., None], *arguments: Any
) -> Iterator[tuple[list[Connection], list[BaseProcess]]]:
    """Copies of this program that call `work(link, index, count, *arguments)`, and the links to them."""
    context = multiprocessing.get_context("spawn")
    links: list[Connection] = []
    started: list[BaseProcess] = []
    try:
        for index in range(count):
            link, their_link = context.Pipe()
            its_arguments = (their_link, index, count, *arguments)
            process: BaseProcess = context.Process(target=work, args=its_arguments, daemon=True)
            process.start()
            their_link.close()  # so that the link ends with the process
            links.append(link)
            started.append(process)
        yield links, started
    except BaseException:
        for process in started:
            process.kill()
        raise
    finally:
        for link in links:
            link.close()
        for process in started:
            process.join()


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of training: its number, the processes that made it, its global batch and its loss."""

    number: int
    count: int
    batch: int  # a checksum of all rows
    loss: float


def train(
    tokens: pathlib.Path, name: str, count: int, *, stop: int, kill: bool = False
) -> list[Step]:
    """Train on `count` processes up to step `stop`; with `kill` they are killed in that step."""
    steps = []
    saved_at = tokens.parents[1] / f"{name}.npz"
    first = Saved.load(saved_at).step
    with processes(count, train_shard, tokens, saved_at, stop) as (links, started):
        for number in range(first, stop):
            sums, targets, losses, slopes = zip(*(link.recv() for link in links), strict=True)
            everything = np.concatenate([np.array(each, np.uint32) for each in sums])
            loss = sum(losses) / sum(targets)
            steps.append(Step(number, count, zlib.crc32(everything.tobytes()), loss))
            if kill and number == stop - 1:
                kill_all(started)
                break
            slope = np.sum(slopes, axis=0) / np.float32(sum(targets))
            for link in links:
                link.send(slope)
    return steps


def kill_all(started: Sequence[BaseProcess]) -> None:
    """Kill processes, the first one last: without it, the others of jax.distributed end themselves."""
    for process in reversed(started):
        process.kill()
    for process in started:
        process.join()
    if any(process.exitcode != -signal.SIGKILL for process in started):
        raise SystemExit("a process that was to be killed had ended")


def train_twice(
    train: Callable[..., list[Step]], steps: int, runs: Sequence[tuple[int, float]] = RUNS
) -> None:
    """Train without a stop, and killed twice; print and compare the steps.

    Args:
        train: `train(name, count, stop=..., kill=...)` trains, and saves under that name.
        steps: The steps of either training.
        runs: The processes of each run of the training that is killed, and the share of the steps
            after which they are killed, or done.
    """
    whole = train("whole", 1, stop=steps)
    killed: list[Step] = []
    for count, share in runs:
        stop = math.ceil(share * steps)
        killed += train("killed", count, stop=stop, kill=stop < steps)
    print("           without a stop    killed and resumed")
    print("    step   batch    loss     batch    loss     processes")
    for step in killed:
        same = whole[step.number]
        print(
            f"{step.number:8}   {same.batch:08x} {same.loss:6.4f}   {step.batch:08x}"
            f" {step.loss:6.4f}   {step.count}"
        )
    compare(whole, killed)


def compare(whole: Sequence[Step], killed: Sequence[Step]) -> None:
    """Fail unless the killed runs have all steps of the whole run, with its batches and losses."""
    if {step.number for step in killed} != {step.number for step in whole}:
        raise SystemExit("the killed runs have other steps")
    if any(step.batch != whole[step.number].batch for step in killed):
        raise SystemExit("the killed runs have other batches")
    differences = [abs(step.loss / whole[step.number].loss - 1) for step in killed]
    if max(differences) > TOLERANCE:
        raise SystemExit(f"the losses differ by {max(differences):.1e}")
    print(f"the same global batches; losses differ by at most {max(differences):.1e} of themselves")


# --- 4. evaluation -----------------------------------------------------------------------------------


def evaluation_batches(tokens: pathlib.Path) -> windrow.MapDataset[Batch]:
    """The speeches that were held out, one per row, padded to the longest; rows that are `real`."""
    source = RaggedDataSource(tokens)
    longest = int(np.asarray(source.lengths())[-HELD_OUT:].max())
    documents = windrow.MapDataset.source(source)[-HELD_OUT:].map_with_index(as_row)
    return documents.batch(EVALUATION_BATCH, remainder="pad", mask="real", pad_to=longest)


def as_row(index: int, tokens: Array) -> Batch:
    """A document as a row with one segment, and its number."""
    ones = np.ones(len(tokens) - 1, np.int32)
    return {
        "inputs": tokens[:-1],
        "inputs_segmentation": ones,
        "inputs_position": np.arange(len(ones), dtype=np.int32),
        "targets": tokens[1:],
        "targets_segmentation": ones,
        "record": np.array(index),
    }


def evaluate_shard(
    link: Connection, index: int, count: int, tokens: pathlib.Path, saved_at: pathlib.Path
) -> None:
    """Send the numbers, losses and targets of the real rows of this process."""
    _, params_of = ravel_pytree(initial())
    losses = jax.jit(lambda weights, batch: losses_of(params_of(weights), batch))
    weights = Saved.load(saved_at).weights
    found: list[tuple[int, float, int]] = []
    for batch in evaluation_batches(tokens).shard(index, count):
        records, real = batch.pop("record"), batch.pop("real")
        targets = np.count_nonzero(batch["targets_segmentation"], axis=1)
        columns = (records, np.asarray(losses(weights, batch)), targets)
        found += zip(*(column[real].tolist() for column in columns), strict=True)
    link.send(found)


def evaluate(tokens: pathlib.Path, saved_at: pathlib.Path) -> float:
    """Evaluate on several processes; print and return the loss per token.

    Fails unless each record was counted once.
    """
    with processes(EVALUATORS, evaluate_shard, tokens, saved_at) as (links, _):
        found = [link.recv() for link in links]
    records, losses, targets = zip(*(row for rows in found for row in rows), strict=True)
    if sorted(records) != list(range(HELD_OUT)):
        raise SystemExit("records were left out, or counted twice")
    loss: float = sum(losses) / sum(targets)
    shares = " + ".join(str(len(rows)) for rows in found)
    print(f"evaluated {shares} = {HELD_OUT} records, each once; loss per token {loss:.4f}")
    return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--steps", type=int, default=48, help="steps of training [48]")
    arguments = parser.parse_args()
    if arguments.steps < 3 * SAVE_EVERY:
        parser.error(f"--steps must be at least {3 * SAVE_EVERY}, so that each run saves something")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        tokens = write_tokens(folder)
        print(RaggedDataSource(tokens))
        for row_tokens in (ROW_TOKENS, 2048):
            print(f"real tokens per cell, rows of {row_tokens:,}:")
            for packer, fill in fills(tokens, row_tokens).items():
                print(f"{packer:>36} {fill:7.2%}")
        train_twice(functools.partial(train, tokens), arguments.steps)
        evaluate(tokens, folder / "killed.npz")


if __name__ == "__main__":
    main()
