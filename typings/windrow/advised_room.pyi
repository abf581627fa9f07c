from loader.advised_room import *
