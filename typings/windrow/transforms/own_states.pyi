from transforms.own_states import *
