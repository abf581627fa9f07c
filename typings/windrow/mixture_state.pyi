from loader.mixture_state import *
