from loader.core.optional_imports import *
