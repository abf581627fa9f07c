from loader.core.text import *
