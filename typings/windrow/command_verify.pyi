from loader.command_verify import *
