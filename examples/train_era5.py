"""Forecast the temperature over Britain and Ireland for the next six hours, from windows of ERA5.

    python examples/train_era5.py

1. Records are windows of one Zarr array: the hours t-12, t-6 and t, the same hours of the day
   before, and the six hours that are to be forecast. Training and validation are chosen by date, and
   no window reaches from one into the other.
2. A small convolutional network is trained in JAX.
3. Its errors are compared with the errors of three plain forecasts, and one case is drawn.
   (The network was chosen with these days in sight: for a claim about weather, keep other days.)

The data are a month of hourly temperatures (examples/data); --store takes any other Zarr group with
an array t2m, in kelvin, over time, latitude and longitude of that month and area.
"""

import argparse
import pathlib
import time
from typing import Any

import numpy as np
import numpy.typing as npt

import windrow
from windrow.sources import Field, WindowDataSource

try:
    import jax
    import jax.numpy as jnp
    from matplotlib.figure import Figure
except ImportError as error:
    raise windrow.errors.missing_extra("examples/train_era5.py", "examples") from error

STORE = pathlib.Path(__file__).parent / "data" / "era5_uk_t2m_2019_03.zarr"
TRAINING = slice("2019-03-01", "2019-03-24")  # both days included, as in xarray
VALIDATION = slice("2019-03-25", "2019-03-31")
AHEAD = [1, 2, 3, 4, 5, 6]  # hours
BEFORE = [-12, -6, 0]
DAY_BEFORE = [hour - 24 for hour in [0, *AHEAD]]

MEAN_K, SPREAD_K = 280.0, 4.0
ZERO_CELSIUS_K = 273.15
CHANNELS, PLACE_CHANNELS = 24, 4
DILATIONS = (1, 2, 4, 1)  # together a cell sees 8 cells, two degrees, to each side
RATE, DECAY = 2e-3, 0.1
REPORT_STEPS = 50

Array = npt.NDArray[Any]


# --- 1. the data -------------------------------------------------------------------------------------


def windows(store: str | pathlib.Path, days: slice) -> Any:
    """A record for each hour t of `days` whose whole window lies in them.

    `x` is float32 `(3, latitude, longitude)`, `day_before` `(7, ...)` and `y` `(6, ...)`, in kelvin;
    `x_time`, `day_before_time` and `y_time` say which hours these are, `latitude` and `longitude`
    where.
    """
    fields = {
        "x": Field("t2m", {"time": BEFORE}),
        "day_before": Field("t2m", {"time": DAY_BEFORE}),
        "y": Field("t2m", {"time": AHEAD}),
    }
    return WindowDataSource(store, {"time": days}, fields=fields, coordinates=True)


def normalised(record: dict[str, Array]) -> dict[str, Array]:
    """Scale temperatures to about -2 to 2, and the hour t to a part of the day; one record or many."""
    now = record["x_time"][..., -1]
    passed = (now - now.astype("M8[D]")) / np.timedelta64(1, "D")
    scaled = {name: (record[name] - MEAN_K) / SPREAD_K for name in ("x", "day_before", "y")}
    return scaled | {"day": np.asarray(passed, np.float32)}


def stretched(record: dict[str, Array], rng: np.random.Generator) -> dict[str, Array]:
    """Augment: randomly strengthen or weaken the differences in temperature."""
    factor, mean = np.float32(np.exp(0.2 * rng.standard_normal())), record["x"].mean()
    changed = {name: mean + factor * (record[name] - mean) for name in ("x", "day_before", "y")}
    return record | changed


def batches_of(source: Any, batch: int, seed: int) -> Any:
    """Batches for training: all windows of the source in a random order, then in another one, ..."""
    return (
        windrow.MapDataset.source(source)
        .shuffle(seed)
        .map(normalised)
        .repeat()
        .random_map(stretched, seed=seed)
        .batch(batch, drop_remainder=True)
    )


# --- 2. the model ------------------------------------------------------------------------------------


def initial(key: Any, area: tuple[int, ...]) -> Any:
    """Initial parameters: the layers, and numbers for each place, which can learn land and sea."""
    places, *keys = jax.random.split(key, 1 + len(DILATIONS))
    inputs = len(BEFORE) + len(DAY_BEFORE) + 1 + 2 + PLACE_CHANNELS
    widths = [inputs, CHANNELS, CHANNELS, CHANNELS, 5 * len(AHEAD)]
    layers = []
    for number, layer_key in enumerate(keys):
        shape = (widths[number + 1], widths[number], 3, 3)
        scale = (2 / (9 * widths[number])) ** 0.5 * (0.1 if layer_key is keys[-1] else 1)
        layers.append((scale * jax.random.normal(layer_key, shape), jnp.zeros(shape[0])))
    return {"places": 0.1 * jax.random.normal(places, (PLACE_CHANNELS, *area)), "layers": layers}


def forecast(params: Any, batch: Any) -> Any:
    """The next hours `(batch, 6, latitude, longitude)`.

    The network does not say the temperature itself, but at each place how far to trust each of four
    changes that are known, and what to add: where it warmed half a day ago, it may cool now.
    """
    x, day_before = batch["x"], batch["day_before"]
    now, earlier, start = x[:, -1:], x[:, -2:-1], day_before[:, :1]
    angle = 2 * jnp.pi * batch["day"]
    clock = jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=1)[:, :, None, None]
    same = (
        jnp.broadcast_to(z, (len(x), z.shape[-3], *x.shape[2:])) for z in (clock, params["places"])
    )
    z = jnp.concatenate([x - now, day_before - now, now, *same], axis=1)
    for number, (kernel, bias) in enumerate(params["layers"]):
        z = jax.nn.relu(z) if number else z
        apart = (DILATIONS[number], DILATIONS[number])
        z = jax.lax.conv_general_dilated(z, kernel, (1, 1), [apart] * 2, rhs_dilation=apart)
        z = z + bias[:, None, None]
    said = z.reshape(len(x), 5, len(AHEAD), *z.shape[2:])
    changes = (now - earlier, earlier - x[:, :1], day_before[:, 1:] - start, start - now)
    return now + said[:, 0] + sum(said[:, k + 1] * change for k, change in enumerate(changes))


def loss_of(params: Any, batch: Any) -> Any:
    """The mean square error of the forecasts of a batch."""
    return jnp.mean((forecast(params, batch) - batch["y"]) ** 2)


@jax.jit
def update(
    params: Any, mean: Any, square: Any, step: Any, rate: Any, batch: Any
) -> tuple[Any, Any, Any, Any]:
    """One step of training: parameters, the two averages of Adam, and the loss."""
    loss, slope = jax.value_and_grad(loss_of)(params, batch)
    return *adam(params, mean, square, step, rate, slope), loss


def adam(
    params: Any, mean: Any, square: Any, step: Any, rate: Any, slope: Any
) -> tuple[Any, Any, Any]:
    """One step of Adam, with decoupled weight decay; parameters, and its two averages."""
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, slope)
    square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, square, slope)
    first, second = 1 - 0.9 ** (step + 1), 1 - 0.99 ** (step + 1)
    params = jax.tree.map(
        lambda p, m, s: p - rate * (DECAY * p + m / first / (jnp.sqrt(s / second) + 1e-8)),
        params,
        mean,
        square,
    )
    return params, mean, square


def train(source: Any, *, steps: int, batch: int, seed: int) -> Any:
    """Train for `steps` steps and return the parameters; prints the error of the batches."""
    params = initial(jax.random.key(seed), source[0]["y"].shape[1:])
    mean = square = jax.tree.map(jnp.zeros_like, params)
    start, losses = time.perf_counter(), []
    with iter(batches_of(source, batch, seed)) as batches:
        for step in range(steps):
            rate = RATE * 0.5 * (1 + np.cos(np.pi * step / steps))  # falls to 0
            params, mean, square, loss = update(params, mean, square, step, rate, next(batches))
            losses.append(loss)
            if (step + 1) % REPORT_STEPS == 0 or step + 1 == steps:
                error_k = SPREAD_K * float(np.mean(losses)) ** 0.5
                losses = []
                seconds = time.perf_counter() - start
                print(f"step {step + 1:4}: error {error_k:.2f} K, {seconds:.0f} s", flush=True)
    return params


# --- 3. the comparison -------------------------------------------------------------------------------


def forecasts_of(params: Any, record: dict[str, Array]) -> dict[str, Array]:
    """Forecast records with the network and three simple rules, in kelvin, by name."""
    now, start = record["x"][:, -1:], record["day_before"][:, :1]
    said = jax.jit(forecast)(params, normalised(record))
    return {
        "network": np.asarray(said) * SPREAD_K + MEAN_K,
        "persistence": np.broadcast_to(now, record["y"].shape),
        "day before": record["day_before"][:, 1:],
        "change of the day before": now + record["day_before"][:, 1:] - start,
    }


def rmse(error: Array, axis: tuple[int, ...]) -> Array:
    """The root mean square."""
    found: Array = np.sqrt(np.mean(np.square(error, dtype=np.float64), axis=axis))
    return found


def draw(path: pathlib.Path, case: dict[str, Array], said: Array, errors: dict[str, Array]) -> None:
    """One case, and the errors of all of them by the hours ahead, as a PNG file.

    Args:
        path: Where to write.
        case: A record with its coordinates.
        said: The network's forecast for it.
        errors: By name of the forecast, RMSE in kelvin for each of the hours ahead.
    """
    names = [f"input, t{hour:+} h" if hour else "input, t" for hour in BEFORE]
    names += [f"truth, t{AHEAD[-1]:+} h", f"forecast, t{AHEAD[-1]:+} h"]
    celsius = np.stack([*case["x"], case["y"][-1], said[-1]]) - ZERO_CELSIUS_K
    hours = [*case["x_time"], case["y_time"][-1], case["y_time"][-1]]
    wrong = {"forecast": said[-1] - case["y"][-1], "persistence": case["x"][-1] - case["y"][-1]}
    widest = max(np.abs(error).max() for error in wrong.values())

    figure = Figure(figsize=(13.5, 7), layout="constrained")
    above, below = figure.subfigures(2, 1, squeeze=False).ravel()
    axes = above.subplots(1, len(names), sharey=True)
    drawn = None
    for axis, name, hour, field in zip(axes, names, hours, celsius, strict=True):
        title = f"{name}\n{hour.astype('M8[s]').item():%d %B %Y, %H:%M} UTC"
        drawn = draw_map(axis, case, field, title, "turbo", (celsius.min(), celsius.max()))
    above.colorbar(drawn, ax=axes, label="temperature at 2 m (°C)")
    maps, curves = below.subfigures(1, 2, squeeze=False).ravel()
    axes = maps.subplots(1, len(wrong), sharey=True)
    for axis, (name, error) in zip(axes, wrong.items(), strict=True):
        title = f"{name} - truth, t{AHEAD[-1]:+} h\nRMSE {rmse(error, (0, 1)):.2f} K"
        drawn = draw_map(axis, case, error, title, "RdBu_r", (-widest, widest))
    maps.colorbar(drawn, ax=axes, label="error (K)")
    axis = curves.subplots()
    for name, values in errors.items():
        axis.plot(AHEAD, values, marker="o", label=name)
    axis.set(xlabel="hours ahead", ylabel="RMSE (K)", xticks=AHEAD, ylim=(0, None))
    axis.set_title("all windows of the validation days", fontsize="medium")
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")
    figure.savefig(path, dpi=90)


def draw_map(
    axis: Any,
    case: dict[str, Array],
    field: Array,
    title: str,
    colours: str,
    ends: tuple[float, float],
) -> Any:
    """Draw a field over degrees; return the image, which a colour bar needs."""
    drawn = axis.pcolormesh(
        case["longitude"], case["latitude"], field, cmap=colours, vmin=ends[0], vmax=ends[1]
    )
    axis.set_aspect(1 / np.cos(np.deg2rad(case["latitude"].mean())))  # a kilometre is one each way
    axis.set_title(title, fontsize="medium")
    axis.set(xlabel="longitude (°E)", xticks=[-8, -4, 0])
    if axis.get_subplotspec().is_first_col():
        axis.set_ylabel("latitude (°N)")
    return drawn


def compare(store: str | pathlib.Path, params: Any, plot: pathlib.Path) -> dict[str, Array]:
    """Print the errors over all validation windows, and draw the one with the median error.

    Returns:
        By name of the forecast, RMSE in kelvin for each of the hours ahead.
    """
    source = windows(store, VALIDATION)
    records = source.read(np.arange(len(source)))
    said = forecasts_of(params, records)
    errors = {name: rmse(field - records["y"], (0, 2, 3)) for name, field in said.items()}
    print(f"RMSE in kelvin over {len(source)} windows that were not trained on, by hours ahead:")
    print(f"{'':>25}" + "".join(f"{f'+{hour} h':>7}" for hour in AHEAD))
    for name, error in errors.items():
        print(f"{name:>25}" + "".join(f"{value:7.2f}" for value in error))
    last = rmse(said["network"][:, -1] - records["y"][:, -1], (1, 2))
    typical = int(np.argsort(last)[len(last) // 2])
    case = {name: field[typical] for name, field in records.items()}
    draw(plot, case, said["network"][typical], errors)
    print(f"wrote {plot}")
    return errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=300, help="steps of training [300]")
    parser.add_argument("--batch", type=int, default=16, help="windows in a batch [16]")
    parser.add_argument("--store", default=STORE, help="Zarr group [the one in examples/data]")
    parser.add_argument(
        "--plot",
        type=pathlib.Path,
        default=pathlib.Path("era5.png"),
        help="picture to write [era5.png]",
    )
    parser.add_argument("--seed", type=int, default=0, help="of order and parameters [0]")
    args = parser.parse_args()
    if args.steps < 1 or args.batch < 1:
        parser.error("--steps and --batch must be at least 1")
    if not args.plot.parent.is_dir():
        parser.error(f"--plot: there is no folder {args.plot.parent}")
    source = windows(args.store, TRAINING)
    print(source)
    params = train(source, steps=args.steps, batch=args.batch, seed=args.seed)
    compare(args.store, params, args.plot)


if __name__ == "__main__":
    main()
