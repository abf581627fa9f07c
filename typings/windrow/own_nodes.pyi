from loader.own_nodes import *
