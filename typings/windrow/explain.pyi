from loader.explain import *
