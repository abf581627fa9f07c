from loader.command_bench import *
