from loader.colocated import *
