"""The kinds of recurrent layers, numbered as cuDNN counts them, and how many gates each has."""

RNN_RELU, RNN_TANH, LSTM, GRU = range(4)
GATES = {RNN_RELU: 1, RNN_TANH: 1, LSTM: 4, GRU: 3}
