from sources.windows.datasets import *
