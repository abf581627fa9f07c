from sources.windows.fields import *
