from loader.command_inspect import *
