"""The provider's window and tray: a program apart from the agent, which it knows only by the JSON on its Unix socket.

    app       puts the parts together; ``main(argv)``
    client    asks the agent over HTTP on its socket, with limits, never blocking
    model     the agent's answers, bounded and typed; what the windows show is one ``Snapshot``
    process   the agent as a process of its own: started, followed, asked to stop
    lending   the switch: joins client and process into a stream of snapshots
    sentences a snapshot in words
    window, tray, widgets, theme, looks   what is seen

The window may crash, close or be updated while a job runs. Errors: ``GuiError`` (``errors``), each with a sentence for the owner.
"""
