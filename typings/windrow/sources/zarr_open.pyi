from sources.zarr_open import *
