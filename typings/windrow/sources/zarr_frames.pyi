from sources.zarr_frames import *
