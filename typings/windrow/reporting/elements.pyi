from loader.reporting.elements import *
