from loader.command_convert import *
