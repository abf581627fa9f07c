from loader.cli.explain import *
