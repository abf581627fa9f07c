from loader.core.renamed import *
