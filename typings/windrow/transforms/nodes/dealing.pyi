from transforms.nodes.dealing import *
