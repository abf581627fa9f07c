from sources.zarr.remote import *
