from loader.engine.tickets import *
