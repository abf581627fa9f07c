from loader.jax_dataset import *
