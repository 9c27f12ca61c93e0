<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE TS>
<TS version="2.1" language="de">
<context>
    <name>AcceptSheet</name>
    <message>
        <source>Accept a publisher</source>
        <translation>Einen Herausgeber annehmen</translation>
    </message>
    <message>
        <source>Take the key from somebody whom you trust. Whatever is signed with it may run here, without network and without your files.</source>
        <translation>Nehmen Sie den Schlüssel von jemandem, dem Sie trauen. Was damit unterschrieben ist, darf hier laufen, ohne Netz und ohne Ihre Dateien.</translation>
    </message>
    <message>
        <source>The publisher&apos;s key</source>
        <translation>Schlüssel des Herausgebers</translation>
    </message>
    <message>
        <source>What you call the publisher</source>
        <translation>Wie Sie den Herausgeber nennen</translation>
    </message>
    <message>
        <source>Key from a &amp;file…</source>
        <translation>Schlüssel aus einer &amp;Datei…</translation>
    </message>
    <message>
        <source>&amp;Accept</source>
        <translation>&amp;Annehmen</translation>
    </message>
    <message>
        <source>&amp;Close</source>
        <translation>S&amp;chließen</translation>
    </message>
    <message>
        <source>That is no key. One has 43 or 44 letters and digits, as `cottage image push` shows it.</source>
        <translation>Das ist kein Schlüssel. Einer hat 43 oder 44 Buchstaben und Ziffern, wie `cottage image push` ihn zeigt.</translation>
    </message>
    <message>
        <source>Give the publisher a name.</source>
        <translation>Geben Sie dem Herausgeber einen Namen.</translation>
    </message>
    <message>
        <source>A file with the publisher&apos;s key</source>
        <translation>Eine Datei mit dem Schlüssel des Herausgebers</translation>
    </message>
    <message>
        <source>The file cannot be read: {0}</source>
        <translation>Die Datei kann nicht gelesen werden: {0}</translation>
    </message>
    <message>
        <source>There is no key in that file.</source>
        <translation>In dieser Datei steht kein Schlüssel.</translation>
    </message>
    <message>
        <source>There are several keys in that file.</source>
        <translation>In dieser Datei stehen mehrere Schlüssel.</translation>
    </message>
</context>
<context>
    <name>ActivityPage</name>
    <message>
        <source>What is shown</source>
        <translation>Was gezeigt wird</translation>
    </message>
    <message>
        <source>Everything</source>
        <translation>Alles</translation>
    </message>
    <message>
        <source>Problems</source>
        <translation>Probleme</translation>
    </message>
    <message>
        <source>Jobs</source>
        <translation>Aufträge</translation>
    </message>
    <message>
        <source>Money</source>
        <translation>Geld</translation>
    </message>
    <message>
        <source>What has happened</source>
        <translation>Was geschehen ist</translation>
    </message>
    <message>
        <source>&amp;Copy for support</source>
        <translation>Für &amp;Hilfe kopieren</translation>
    </message>
    <message>
        <source>Sho&amp;w the report</source>
        <translation>Bericht &amp;zeigen</translation>
    </message>
    <message>
        <source>Without addresses, keys, folders and names.</source>
        <translation>Ohne Adressen, Schlüssel, Ordner und Namen.</translation>
    </message>
    <message>
        <source>The report for support</source>
        <translation>Der Bericht für die Hilfe</translation>
    </message>
    <message>
        <source>Nothing of that kind has happened yet.</source>
        <translation>Nichts dergleichen ist bisher geschehen.</translation>
    </message>
    <message>
        <source>Cottage&apos;s agent started.</source>
        <translation>Der Agent von Cottage wurde gestartet.</translation>
    </message>
    <message>
        <source>Cottage&apos;s agent ended.</source>
        <translation>Der Agent von Cottage wurde beendet.</translation>
    </message>
    <message>
        <source>Began work on “{0}”.</source>
        <translation>Die Arbeit an „{0}“ begann.</translation>
    </message>
    <message>
        <source>Work on “{0}” ended.</source>
        <translation>Die Arbeit an „{0}“ endete.</translation>
    </message>
    <message>
        <source>Work on “{0}” failed: {1}</source>
        <translation>Die Arbeit an „{0}“ schlug fehl: {1}</translation>
    </message>
    <message>
        <source>{0} verified.</source>
        <translation>{0} geprüft.</translation>
    </message>
    <message>
        <source>{0} sent to {1}.</source>
        <translation>{0} an {1} gesendet.</translation>
    </message>
    <message>
        <source>{0} paid.</source>
        <translation>{0} ausgezahlt.</translation>
    </message>
    <message>
        <source>Settings were changed: {0}.</source>
        <translation>Einstellungen geändert: {0}.</translation>
    </message>
    <message>
        <source>Self-test: this computer can lend.</source>
        <translation>Selbsttest: Dieser Computer kann verliehen werden.</translation>
    </message>
    <message>
        <source>This computer did not show a piece of its work when it was asked to, and was not paid for that round. Another time before {0} costs {1} % of its stake.</source>
        <translation>Dieser Computer zeigte ein Stück seiner Arbeit nicht, als es verlangt wurde, und diese Runde wurde ihm nicht bezahlt. Noch einmal vor {0} kostet {1} % seines Einsatzes.</translation>
    </message>
    <message>
        <source>Back after a crash: shows the work of round {0} of “{1}”, so that it is paid.</source>
        <translation>Zurück nach einem Absturz: zeigt die Arbeit der Runde {0} von „{1}“, damit sie bezahlt wird.</translation>
    </message>
    <message>
        <source>{0} jobs in a row failed before their first step. This computer&apos;s own test passed, so it goes on lending.</source>
        <translation>{0} Aufträge hintereinander sind vor ihrem ersten Schritt gescheitert. Der eigene Test dieses Computers war in Ordnung, also verleiht er weiter.</translation>
    </message>
    <message>
        <source>Version {0} is there.</source>
        <translation>Version {0} ist da.</translation>
    </message>
    <message>
        <source>Ready to lend.</source>
        <translation>Bereit.</translation>
    </message>
    <message>
        <source>Finishing what runs, then off.</source>
        <translation>Beendet noch, was läuft; dann aus.</translation>
    </message>
    <message>
        <source>Lending went off.</source>
        <translation>Das Verleihen ging aus.</translation>
    </message>
    <message>
        <source>Paused: you asked for it.</source>
        <translation>Pause: Sie wollten es so.</translation>
    </message>
    <message>
        <source>Paused: {0} was started.</source>
        <translation>Pause: {0} wurde gestartet.</translation>
    </message>
    <message>
        <source>Paused: somebody is at the computer.</source>
        <translation>Pause: Jemand ist am Computer.</translation>
    </message>
    <message>
        <source>Paused: on battery.</source>
        <translation>Pause: Batteriebetrieb.</translation>
    </message>
    <message>
        <source>Paused: outside your hours.</source>
        <translation>Pause: außerhalb Ihrer Stunden.</translation>
    </message>
    <message>
        <source>Paused: the GPU was at {0} °C.</source>
        <translation>Pause: Die GPU hatte {0} °C.</translation>
    </message>
    <message>
        <source>Paused: your programs used {0} GB of the GPU&apos;s memory.</source>
        <translation>Pause: Ihre Programme nutzten {0} GB des GPU-Speichers.</translation>
    </message>
    <message>
        <source>Copied. Look through it before you send it.</source>
        <translation>Kopiert. Sehen Sie es durch, bevor Sie es senden.</translation>
    </message>
</context>
<context>
    <name>AgentClient</name>
    <message>
        <source>Another user&apos;s program (user number {0}) answers in its place.</source>
        <translation>An seiner Stelle antwortet das Programm eines anderen Benutzers (Nummer {0}).</translation>
    </message>
    <message>
        <source>Its answer is larger than {0:,} bytes.</source>
        <translation>Seine Antwort ist größer als {0:,} Bytes.</translation>
    </message>
    <message>
        <source>Its socket cannot be used: {0}.</source>
        <translation>Sein Socket ist nicht benutzbar: {0}.</translation>
    </message>
    <message>
        <source>It has not answered for {0} seconds.</source>
        <translation>Er hat seit {0} Sekunden nicht geantwortet.</translation>
    </message>
    <message>
        <source>What answers in its place does not speak HTTP.</source>
        <translation>Was an seiner Stelle antwortet, spricht kein HTTP.</translation>
    </message>
    <message>
        <source>It answers “{0}”.</source>
        <translation>Er antwortet „{0}“.</translation>
    </message>
    <message>
        <source>Its answer was cut after {0:,} bytes.</source>
        <translation>Seine Antwort brach nach {0:,} Bytes ab.</translation>
    </message>
</context>
<context>
    <name>AgentProcess</name>
    <message>
        <source>{0} cannot be started with its log in {1}: {2}.</source>
        <translation>{0} lässt sich mit dem Protokoll in {1} nicht starten: {2}.</translation>
    </message>
    <message>
        <source>It is not known which process answers; end it where it was started.</source>
        <translation>Unbekannt, welcher Prozess antwortet; beenden Sie ihn, wo er gestartet wurde.</translation>
    </message>
    <message>
        <source>The process {0} cannot be stopped: {1}.</source>
        <translation>Der Prozess {0} lässt sich nicht beenden: {1}.</translation>
    </message>
    <message>
        <source>It ended without a word; its log is {0}.</source>
        <translation>Er endete ohne ein Wort; sein Protokoll ist {0}.</translation>
    </message>
</context>
<context>
    <name>BackupSheet</name>
    <message>
        <source>Save a backup</source>
        <translation>Sicherung speichern</translation>
    </message>
    <message>
        <source>One encrypted file with key, settings and rules. Without the passphrase nobody can open it.</source>
        <translation>Eine verschlüsselte Datei mit Schlüssel, Einstellungen und Regeln. Ohne das Kennwort kann niemand sie öffnen.</translation>
    </message>
    <message>
        <source>Passphrase</source>
        <translation>Kennwort</translation>
    </message>
    <message>
        <source>Once more</source>
        <translation>Noch einmal</translation>
    </message>
    <message>
        <source>&amp;Save as…</source>
        <translation>&amp;Speichern unter …</translation>
    </message>
    <message>
        <source>&amp;Close</source>
        <translation>S&amp;chließen</translation>
    </message>
    <message>
        <source>At least {0} characters.</source>
        <translation>Mindestens {0} Zeichen.</translation>
    </message>
    <message>
        <source>The two differ.</source>
        <translation>Die beiden sind verschieden.</translation>
    </message>
    <message>
        <source>Cottage backup (*.cottage)</source>
        <translation>Cottage-Sicherung (*.cottage)</translation>
    </message>
    <message>
        <source>Saved in {0}. Keep it on another disk.</source>
        <translation>Gespeichert in {0}. Bewahren Sie sie auf einem anderen Datenträger auf.</translation>
    </message>
</context>
<context>
    <name>Calls</name>
    <message>
        <source>The agent does not run.</source>
        <translation>Der Agent läuft nicht.</translation>
    </message>
    <message>
        <source>The agent is slow; try again in a moment.</source>
        <translation>Der Agent ist langsam; versuchen Sie es gleich noch einmal.</translation>
    </message>
</context>
<context>
    <name>CardRow</name>
    <message>
        <source>Lend this graphics card</source>
        <translation>Diese Grafikkarte verleihen</translation>
    </message>
    <message>
        <source>Lend {0}</source>
        <translation>{0} verleihen</translation>
    </message>
    <message>
        <source>Switched off. The others go on.</source>
        <translation>Ausgeschaltet. Die anderen machen weiter.</translation>
    </message>
    <message>
        <source>It is lent when lending is on.</source>
        <translation>Sie wird verliehen, wenn das Verleihen eingeschaltet ist.</translation>
    </message>
    <message>
        <source>It is being measured.</source>
        <translation>Sie wird vermessen.</translation>
    </message>
    <message>
        <source>It waits for the network.</source>
        <translation>Sie wartet auf das Netz.</translation>
    </message>
    <message>
        <source>It is lent; no job needs it now.</source>
        <translation>Sie ist verliehen; gerade braucht sie kein Auftrag.</translation>
    </message>
    <message>
        <source>It steps aside for now.</source>
        <translation>Sie tritt gerade zurück.</translation>
    </message>
    <message>
        <source>The network does not take it now.</source>
        <translation>Das Netz nimmt sie gerade nicht.</translation>
    </message>
    <message>
        <source>It hands over what it has.</source>
        <translation>Sie übergibt, was sie hat.</translation>
    </message>
    <message>
        <source>{0} jobs use it.</source>
        <translation>{0} Aufträge nutzen sie.</translation>
    </message>
    <message>
        <source>A job uses it.</source>
        <translation>Ein Auftrag nutzt sie.</translation>
    </message>
</context>
<context>
    <name>CardsMenu</name>
    <message>
        <source>Graphics &amp;cards</source>
        <translation>Grafik&amp;karten</translation>
    </message>
</context>
<context>
    <name>CheckWords</name>
    <message>
        <source>Device</source>
        <translation>Gerät</translation>
    </message>
    <message>
        <source>Docker</source>
        <translation>Docker</translation>
    </message>
    <message>
        <source>Speed</source>
        <translation>Tempo</translation>
    </message>
    <message>
        <source>Disk</source>
        <translation>Platte</translation>
    </message>
    <message>
        <source>Memory</source>
        <translation>Speicher</translation>
    </message>
    <message>
        <source>Network</source>
        <translation>Netz</translation>
    </message>
    <message>
        <source>Earnings</source>
        <translation>Einnahmen</translation>
    </message>
    <message>
        <source>{0} GB free, {1} GB for jobs</source>
        <translation>{0} GB frei, {1} GB für Aufträge</translation>
    </message>
    <message>
        <source>{0} of {1} MB for jobs</source>
        <translation>{0} von {1} MB für Aufträge</translation>
    </message>
    <message>
        <source>The GPU that you chose is not in this computer; the processor earns far less.</source>
        <translation>Die gewählte GPU ist nicht in diesem Computer; der Prozessor verdient weit weniger.</translation>
    </message>
    <message>
        <source>No NVIDIA GPU can be used; the processor earns far less. {0}</source>
        <translation>Keine NVIDIA-GPU ist benutzbar; der Prozessor verdient weit weniger. {0}</translation>
    </message>
    <message>
        <source>{0} graphics are not supported yet; the processor earns far less.</source>
        <translation>Grafik von {0} wird noch nicht unterstützt; der Prozessor bringt weit weniger.</translation>
    </message>
    <message>
        <source>{0}: make room</source>
        <translation>{0}: schaffen Sie Platz</translation>
    </message>
    <message>
        <source>{0} MB are too little for any job</source>
        <translation>{0} MB sind für jeden Auftrag zu wenig</translation>
    </message>
    <message>
        <source>Keeps jobs away from your files and your network</source>
        <translation>Hält Aufträge von Ihren Dateien und Ihrem Netz fern</translation>
    </message>
    <message>
        <source>Jobs run with your rights: for a demo only</source>
        <translation>Aufträge laufen mit Ihren Rechten: nur für eine Vorführung</translation>
    </message>
    <message>
        <source>Jobs cannot be kept apart safely here: {0}</source>
        <translation>Aufträge lassen sich hier nicht sicher trennen: {0}</translation>
    </message>
    <message>
        <source>{0} GFLOP/s, measured</source>
        <translation>{0} GFLOP/s, gemessen</translation>
    </message>
    <message>
        <source>{0} GFLOP/s while other programs computed: close them and check again</source>
        <translation>{0} GFLOP/s, während andere Programme rechneten: schließen Sie diese und prüfen Sie noch einmal</translation>
    </message>
    <message>
        <source>It is measured once jobs can run here</source>
        <translation>Wird gemessen, sobald hier Aufträge laufen können</translation>
    </message>
    <message>
        <source>{0} computers are connected, {1} of them work</source>
        <translation>{0} Computer sind verbunden, {1} davon arbeiten</translation>
    </message>
    <message>
        <source>The network is there, and cannot answer now</source>
        <translation>Das Netz ist da und kann gerade nicht antworten</translation>
    </message>
    <message>
        <source>Nobody answers there: {0}</source>
        <translation>Dort antwortet niemand: {0}</translation>
    </message>
    <message>
        <source>Between {0} and {1} a day of 24 hours, before electricity: Settings, Money, takes what a token is worth</source>
        <translation>Zwischen {0} und {1} am Tag zu 24 Stunden, vor dem Strom: In den Einstellungen unter Geld steht, was ein Token wert ist</translation>
    </message>
    <message>
        <source>Between {0} and {1} a day of 24 hours, before electricity</source>
        <translation>Zwischen {0} und {1} am Tag zu 24 Stunden, vor dem Strom</translation>
    </message>
    <message>
        <source>Between {0} and {1} a day of 24 hours, after up to {2} for electricity</source>
        <translation>Zwischen {0} und {1} am Tag zu 24 Stunden, nach bis zu {2} für Strom</translation>
    </message>
    <message>
        <source>{0} tokens</source>
        <translation>{0} Token</translation>
    </message>
    <message>
        <source>No relay of the network is reached from here</source>
        <translation>Von hier wird kein Relay des Netzes erreicht</translation>
    </message>
    <message>
        <source>Internet</source>
        <translation>Internet</translation>
    </message>
    <message>
        <source>The image that jobs run in is not here yet</source>
        <translation>Das Abbild, in dem Aufträge laufen, ist noch nicht da</translation>
    </message>
    <message>
        <source>Up {0}, down {1} Mbit/s</source>
        <translation>Hinauf {0}, herunter {1} Mbit/s</translation>
    </message>
    <message>
        <source>There is none yet: give its address, or an invitation</source>
        <translation>Es gibt noch keines: Geben Sie seine Adresse oder eine Einladung an</translation>
    </message>
    <message>
        <source>Another network answers there than that of your invitation. Ask whoever invited you for a new one.</source>
        <translation>Dort antwortet ein anderes Netz als das Ihrer Einladung. Bitten Sie um eine neue, wer Sie eingeladen hat.</translation>
    </message>
    <message>
        <source>It is tested once the network answers</source>
        <translation>Wird geprüft, sobald das Netz antwortet</translation>
    </message>
    <message>
        <source>It could not be tested: {0}</source>
        <translation>Sie ließ sich nicht prüfen: {0}</translation>
    </message>
    <message>
        <source>Known once the speed is measured and the network has told its price</source>
        <translation>Bekannt, sobald das Tempo gemessen ist und das Netz seinen Preis genannt hat</translation>
    </message>
    <message>
        <source>The computer at this address runs no network now</source>
        <translation>Auf dem Computer mit dieser Adresse läuft gerade kein Netz</translation>
    </message>
    <message>
        <source>There is no computer of this name: look whether the address is spelt right</source>
        <translation>Es gibt keinen Computer dieses Namens: Prüfen Sie, ob die Adresse richtig geschrieben ist</translation>
    </message>
    <message>
        <source>Nobody answered in time: look whether this computer is online, and whether the address is right</source>
        <translation>Niemand hat rechtzeitig geantwortet: Prüfen Sie, ob dieser Computer online ist und die Adresse stimmt</translation>
    </message>
    <message>
        <source>The way there is cut: look whether this computer is online</source>
        <translation>Der Weg dorthin ist unterbrochen: Prüfen Sie, ob dieser Computer online ist</translation>
    </message>
    <message>
        <source>Whoever answers there cannot prove the name of the address</source>
        <translation>Wer dort antwortet, kann den Namen der Adresse nicht nachweisen</translation>
    </message>
    <message>
        <source>Something else than a Cottage network answers there</source>
        <translation>Dort antwortet etwas anderes als ein Netz von Cottage</translation>
    </message>
    <message>
        <source>The proxy on the way lets nothing through: {0}</source>
        <translation>Der Proxy auf dem Weg lässt nichts durch: {0}</translation>
    </message>
</context>
<context>
    <name>CommandLine</name>
    <message>
        <source>Command for a terminal</source>
        <translation>Befehl für ein Terminal</translation>
    </message>
    <message>
        <source>C&amp;opy</source>
        <translation>K&amp;opieren</translation>
    </message>
</context>
<context>
    <name>Desktop</name>
    <message>
        <source>Cottage keeps its key and settings in {0}, which cannot be used: {1}.</source>
        <translation>Cottage bewahrt Schlüssel und Einstellungen in {0} auf, und das geht dort nicht: {1}.</translation>
    </message>
    <message>
        <source>Give yourself the right to write there, or make room; then open Cottage again.</source>
        <translation>Geben Sie sich dort das Recht zu schreiben, oder schaffen Sie Platz; öffnen Sie Cottage dann noch einmal.</translation>
    </message>
</context>
<context>
    <name>EarningsCard</name>
    <message>
        <source>Earnings</source>
        <translation>Einnahmen</translation>
    </message>
    <message>
        <source>Today</source>
        <translation>Heute</translation>
    </message>
    <message>
        <source>Last 7 days</source>
        <translation>Letzte 7 Tage</translation>
    </message>
    <message>
        <source>All time</source>
        <translation>Insgesamt</translation>
    </message>
    <message>
        <source>To be paid</source>
        <translation>Noch offen</translation>
    </message>
    <message>
        <source>What was verified on each of the last seven days</source>
        <translation>Was an jedem der letzten sieben Tage geprüft wurde</translation>
    </message>
    <message>
        <source>Nothing yet. Jobs come by themselves; what was checked of them is counted here.</source>
        <translation>Noch nichts. Aufträge kommen von selbst; was davon geprüft ist, wird hier gezählt.</translation>
    </message>
    <message>
        <source>&amp;Withdraw…</source>
        <translation>A&amp;bheben …</translation>
    </message>
    <message>
        <source>All &amp;jobs</source>
        <translation>Alle Auf&amp;träge</translation>
    </message>
    <message>
        <source>In tokens.</source>
        <translation>In Token.</translation>
    </message>
    <message>
        <source>In tokens: today about {0}, all time about {1}.</source>
        <translation>In Token: heute etwa {0}, insgesamt etwa {1}.</translation>
    </message>
</context>
<context>
    <name>EarningsPage</name>
    <message>
        <source>Days that are shown</source>
        <translation>Gezeigte Tage</translation>
    </message>
    <message>
        <source>7 days</source>
        <translation>7 Tage</translation>
    </message>
    <message>
        <source>30 days</source>
        <translation>30 Tage</translation>
    </message>
    <message>
        <source>What was verified each day</source>
        <translation>Was an jedem Tag geprüft wurde</translation>
    </message>
    <message>
        <source>Jobs</source>
        <translation>Aufträge</translation>
    </message>
    <message>
        <source>Jobs and what they brought</source>
        <translation>Aufträge und was sie einbrachten</translation>
    </message>
    <message>
        <source>Job</source>
        <translation>Auftrag</translation>
    </message>
    <message>
        <source>When</source>
        <translation>Wann</translation>
    </message>
    <message>
        <source>Hours</source>
        <translation>Stunden</translation>
    </message>
    <message>
        <source>Verified</source>
        <translation>Geprüft</translation>
    </message>
    <message>
        <source>Paid</source>
        <translation>Bezahlt</translation>
    </message>
    <message>
        <source>State</source>
        <translation>Stand</translation>
    </message>
    <message>
        <source>Chec&amp;k the proof</source>
        <translation>Nachweis prü&amp;fen</translation>
    </message>
    <message>
        <source>Copy the &amp;proof&apos;s command</source>
        <translation>&amp;Prüfbefehl kopieren</translation>
    </message>
    <message>
        <source>Save as CS&amp;V…</source>
        <translation>Als CS&amp;V speichern …</translation>
    </message>
    <message>
        <source>&amp;Withdraw…</source>
        <translation>A&amp;bheben …</translation>
    </message>
    <message>
        <source>Before electricity, which costs you {0} a kWh (Settings, Money).</source>
        <translation>Vor Stromkosten von {0} je kWh (Einstellungen, Geld).</translation>
    </message>
    <message>
        <source>Before electricity. Settings, Money: what a kWh costs you.</source>
        <translation>Vor Stromkosten. Einstellungen, Geld: was eine kWh kostet.</translation>
    </message>
    <message>
        <source>{0} in {1} days, {2} in all</source>
        <translation>{0} in {1} Tagen, {2} insgesamt</translation>
    </message>
    <message>
        <source> (about {0})</source>
        <translation> (etwa {0})</translation>
    </message>
    <message>
        <source>▶ Working</source>
        <translation>▶ In Arbeit</translation>
    </message>
    <message>
        <source>✓ Paid</source>
        <translation>✓ Bezahlt</translation>
    </message>
    <message>
        <source>… Pending</source>
        <translation>… Offen</translation>
    </message>
    <message>
        <source>✕ Not paid</source>
        <translation>✕ Nicht bezahlt</translation>
    </message>
    <message>
        <source>The command checks the coordinator&apos;s word against the ledger.</source>
        <translation>Der Befehl prüft das Wort des Koordinators am Ledger.</translation>
    </message>
    <message>
        <source>Choose a job to read why it stands so.</source>
        <translation>Wählen Sie einen Auftrag, um zu lesen, warum er so steht.</translation>
    </message>
    <message>
        <source>Comparing the coordinator&apos;s word with the ledger…</source>
        <translation>Das Wort des Koordinators wird mit dem Ledger verglichen …</translation>
    </message>
    <message>
        <source>Save earnings</source>
        <translation>Einnahmen speichern</translation>
    </message>
    <message>
        <source>{0} cannot be written: {1}.</source>
        <translation>{0} lässt sich nicht schreiben: {1}.</translation>
    </message>
</context>
<context>
    <name>EngineSheet</name>
    <message>
        <source>The engine that jobs run in</source>
        <translation>Die Engine, in der Aufträge laufen</translation>
    </message>
</context>
<context>
    <name>EngineWords</name>
    <message>
        <source>Docker is not installed.</source>
        <translation>Docker ist nicht installiert.</translation>
    </message>
    <message>
        <source>Docker is installed, and does not run.</source>
        <translation>Docker ist installiert und läuft nicht.</translation>
    </message>
    <message>
        <source>Docker runs, and this user may not use it yet.</source>
        <translation>Docker läuft, und dieser Benutzer darf es noch nicht verwenden.</translation>
    </message>
    <message>
        <source>Docker does not answer.</source>
        <translation>Docker antwortet nicht.</translation>
    </message>
    <message>
        <source>&amp;Start the engine…</source>
        <translation>Engine &amp;starten…</translation>
    </message>
    <message>
        <source>Let me &amp;use the engine…</source>
        <translation>&amp;Engine verwenden dürfen…</translation>
    </message>
    <message>
        <source>&amp;Install the engine…</source>
        <translation>Engine &amp;installieren…</translation>
    </message>
    <message>
        <source>&amp;Fetch the image…</source>
        <translation>Abbild &amp;holen…</translation>
    </message>
    <message>
        <source>&amp;Open the page</source>
        <translation>Seite ö&amp;ffnen</translation>
    </message>
    <message>
        <source>Cottage asks for an administrator&apos;s leave, starts the engine and lets you use it.</source>
        <translation>Cottage bittet um die Erlaubnis eines Administrators, startet die Engine und lässt Sie sie verwenden.</translation>
    </message>
    <message>
        <source>Cottage asks for an administrator&apos;s leave and lets you use the engine.</source>
        <translation>Cottage bittet um die Erlaubnis eines Administrators und lässt Sie die Engine verwenden.</translation>
    </message>
    <message>
        <source>Cottage asks for an administrator&apos;s leave, has the system install its package “{0}”, starts it and lets you use it.</source>
        <translation>Cottage bittet um die Erlaubnis eines Administrators, lässt das System sein Paket „{0}“ installieren, startet es und lässt Sie es verwenden.</translation>
    </message>
    <message>
        <source>Whoever may use Docker may do whatever an administrator may.</source>
        <translation>Wer Docker verwenden darf, darf alles, was ein Administrator darf.</translation>
    </message>
    <message>
        <source>Jobs run only inside Docker, so that they reach neither your files nor your network.</source>
        <translation>Aufträge laufen nur in Docker, damit sie weder Ihre Dateien noch Ihr Netz erreichen.</translation>
    </message>
    <message>
        <source>Cottage cannot ask for an administrator&apos;s leave here. Type this in a terminal:</source>
        <translation>Cottage kann hier nicht um die Erlaubnis eines Administrators bitten. Geben Sie dies in einem Terminal ein:</translation>
    </message>
    <message>
        <source>The switch shows how it is installed here.</source>
        <translation>Der Schalter zeigt, wie es hier installiert wird.</translation>
    </message>
    <message>
        <source>The image that jobs run in is fetched after it.</source>
        <translation>Danach wird das Abbild geholt, in dem Aufträge laufen.</translation>
    </message>
    <message>
        <source>For this system Cottage knows no package of it. This page says how it is installed:</source>
        <translation>Für dieses System kennt Cottage kein Paket davon. Diese Seite sagt, wie man es installiert:</translation>
    </message>
    <message>
        <source>Here Docker Desktop is what runs it. This page has its installer:</source>
        <translation>Hier bringt Docker Desktop sie mit. Diese Seite hat sein Installationsprogramm:</translation>
    </message>
    <message>
        <source>The system asks for leave, in a window of its own.</source>
        <translation>Das System bittet um Erlaubnis, in einem eigenen Fenster.</translation>
    </message>
    <message>
        <source>Installing. It takes some minutes.</source>
        <translation>Es wird installiert. Das dauert einige Minuten.</translation>
    </message>
    <message>
        <source>Starting the engine.</source>
        <translation>Die Engine wird gestartet.</translation>
    </message>
    <message>
        <source>Letting you use it.</source>
        <translation>Sie wird für Sie geöffnet.</translation>
    </message>
    <message>
        <source>Nearly done.</source>
        <translation>Fast fertig.</translation>
    </message>
    <message>
        <source>The engine runs, and you may use it.</source>
        <translation>Die Engine läuft, und Sie dürfen sie verwenden.</translation>
    </message>
    <message>
        <source>Nothing was changed: leave was not given.</source>
        <translation>Nichts wurde geändert: Die Erlaubnis wurde nicht gegeben.</translation>
    </message>
    <message>
        <source>Nothing was changed: this system gives nobody leave to do that from here.</source>
        <translation>Nichts wurde geändert: Dieses System erlaubt das von hier aus niemandem.</translation>
    </message>
    <message>
        <source>The package could not be fetched: look whether this computer is online, and try again.</source>
        <translation>Das Paket ließ sich nicht holen: Prüfen Sie, ob dieser Computer online ist, und versuchen Sie es noch einmal.</translation>
    </message>
    <message>
        <source>The package could not be installed. The details say why.</source>
        <translation>Das Paket ließ sich nicht installieren. Die Einzelheiten sagen, warum.</translation>
    </message>
    <message>
        <source>The engine is installed and does not start. The details say why.</source>
        <translation>Die Engine ist installiert und startet nicht. Die Einzelheiten sagen, warum.</translation>
    </message>
    <message>
        <source>The engine runs, and could not be opened to you. The details say why.</source>
        <translation>Die Engine läuft und ließ sich nicht für Sie öffnen. Die Einzelheiten sagen, warum.</translation>
    </message>
    <message>
        <source>The engine runs. Log out and in again: from then on you may use it.</source>
        <translation>Die Engine läuft. Melden Sie sich ab und wieder an: Von da an dürfen Sie sie verwenden.</translation>
    </message>
    <message>
        <source>That did not work. The details say why.</source>
        <translation>Das ging nicht. Die Einzelheiten sagen, warum.</translation>
    </message>
</context>
<context>
    <name>FederationSheet</name>
    <message>
        <source>A federation</source>
        <translation>Eine Föderation</translation>
    </message>
    <message>
        <source>&amp;Not now</source>
        <translation>&amp;Jetzt nicht</translation>
    </message>
    <message>
        <source>Choose a &amp;folder…</source>
        <translation>&amp;Ordner wählen …</translation>
    </message>
    <message>
        <source>&amp;Join with it</source>
        <translation>&amp;Damit mitmachen</translation>
    </message>
    <message>
        <source>Train together, and keep your data?</source>
        <translation>Gemeinsam trainieren und die Daten behalten?</translation>
    </message>
    <message>
        <source>Cottage&apos;s agent is starting.</source>
        <translation>Cottages Agent startet.</translation>
    </message>
    <message>
        <source>Cottage&apos;s agent does not run, so nothing can be joined: {0}</source>
        <translation>Cottages Agent läuft nicht, also kann man nirgends mitmachen: {0}</translation>
    </message>
    <message>
        <source>This computer is not connected to its network. Switch lending on; this goes on by itself.</source>
        <translation>Dieser Computer ist nicht mit seinem Netzwerk verbunden. Schalten Sie das Verleihen ein; dann geht es von selbst weiter.</translation>
    </message>
    <message>
        <source>Asking what the federation wants.</source>
        <translation>Es wird gefragt, was die Föderation möchte.</translation>
    </message>
    <message>
        <source>The agent&apos;s answer cannot be understood: {0}</source>
        <translation>Die Antwort des Agenten ist nicht zu verstehen: {0}</translation>
    </message>
    <message>
        <source>Join “{0}”?</source>
        <translation>Bei „{0}“ mitmachen?</translation>
    </message>
    <message>
        <source>It reads {0}, and writes nothing there.</source>
        <translation>Gelesen wird {0}; geschrieben wird dort nichts.</translation>
    </message>
    <message>
        <source>The folder with your data</source>
        <translation>Der Ordner mit Ihren Daten</translation>
    </message>
    <message>
        <source>Your data is checked on this computer. That takes a while for much of it.</source>
        <translation>Ihre Daten werden auf diesem Computer geprüft. Bei vielen dauert das eine Weile.</translation>
    </message>
    <message>
        <source>You take part.</source>
        <translation>Sie machen mit.</translation>
    </message>
    <message>
        <source>This computer trains with it whenever it lends. `cottage node leave` ends that.</source>
        <translation>Dieser Computer trainiert damit, wann immer er verliehen ist. `cottage node leave` beendet das.</translation>
    </message>
    <message>
        <source>&amp;Close</source>
        <translation>&amp;Schließen</translation>
    </message>
</context>
<context>
    <name>FirstPayment</name>
    <message>
        <source>Your first payment has arrived. {0}</source>
        <translation>Ihre erste Zahlung ist da. {0}</translation>
    </message>
</context>
<context>
    <name>FirstPaymentCard</name>
    <message>
        <source>Your first payment has arrived</source>
        <translation>Ihre erste Zahlung ist da</translation>
    </message>
    <message>
        <source>A coin with a tick</source>
        <translation>Eine Münze mit einem Haken</translation>
    </message>
    <message>
        <source>C&amp;lose</source>
        <translation>Sch&amp;ließen</translation>
    </message>
    <message>
        <source>{0} for work that this computer did. The next ones come quietly.</source>
        <translation>{0} für Arbeit, die dieser Computer getan hat. Die nächsten kommen still.</translation>
    </message>
</context>
<context>
    <name>HomePage</name>
    <message>
        <source>Lend this computer</source>
        <translation>Diesen Computer verleihen</translation>
    </message>
    <message>
        <source>&amp;Pause</source>
        <translation>&amp;Pause</translation>
    </message>
    <message>
        <source>Pause lending, or finish and stop</source>
        <translation>Pause machen, oder beenden und aufhören</translation>
    </message>
    <message>
        <source>End it and start it &amp;again</source>
        <translation>&amp;Beenden und neu starten</translation>
    </message>
    <message>
        <source>How far the job is</source>
        <translation>Wie weit der Auftrag ist</translation>
    </message>
    <message>
        <source>&amp;Restart to update</source>
        <translation>&amp;Jetzt aktualisieren</translation>
    </message>
    <message>
        <source>Picture of a graphics card</source>
        <translation>Bild einer Grafikkarte</translation>
    </message>
    <message>
        <source>Picture of a processor</source>
        <translation>Bild eines Prozessors</translation>
    </message>
    <message>
        <source>Load</source>
        <translation>Last</translation>
    </message>
    <message>
        <source>Memory lent</source>
        <translation>Speicher</translation>
    </message>
    <message>
        <source>Temperature</source>
        <translation>Temperatur</translation>
    </message>
    <message>
        <source>Power</source>
        <translation>Leistung</translation>
    </message>
    <message>
        <source>Internet</source>
        <translation>Internet</translation>
    </message>
    <message>
        <source>This computer</source>
        <translation>Dieser Computer</translation>
    </message>
    <message>
        <source>Name</source>
        <translation>Name</translation>
    </message>
    <message>
        <source>Address</source>
        <translation>Adresse</translation>
    </message>
    <message>
        <source>Paid into</source>
        <translation>Zahlt an</translation>
    </message>
    <message>
        <source>Works for</source>
        <translation>Arbeitet für</translation>
    </message>
    <message>
        <source>&amp;Copy address</source>
        <translation>Adresse &amp;kopieren</translation>
    </message>
    <message>
        <source>Copy this computer&apos;s address</source>
        <translation>Adresse dieses Computers kopieren</translation>
    </message>
    <message>
        <source>Version {0} is ready. What runs is handed over first.</source>
        <translation>Version {0} ist bereit. Was läuft, wird zuerst abgegeben.</translation>
    </message>
    <message>
        <source>Version {0} is there. The system&apos;s updates install it: apt-get install cottage</source>
        <translation>Version {0} ist da. Die Aktualisierung des Systems installiert sie: apt-get install cottage</translation>
    </message>
    <message>
        <source>Version {0} is there. Install it as you installed this one.</source>
        <translation>Version {0} ist da. Installieren Sie sie wie diese.</translation>
    </message>
    <message>
        <source>Version {0} is installed. It begins once no job runs here, or now: what runs is handed over.</source>
        <translation>Version {0} ist installiert. Sie beginnt, sobald hier kein Auftrag läuft, oder jetzt: Was läuft, wird übergeben.</translation>
    </message>
    <message>
        <source>{0} MB/s</source>
        <translation>{0} MB/s</translation>
    </message>
    <message>
        <source>Job</source>
        <translation>Auftrag</translation>
    </message>
    <message>
        <source>{0} GB of memory for jobs</source>
        <translation>{0} GB Speicher für Aufträge</translation>
    </message>
    <message>
        <source>not lent: {0}</source>
        <translation>nicht verliehen: {0}</translation>
    </message>
    <message>
        <source>Mbit/s</source>
        <translation>Mbit/s</translation>
    </message>
    <message>
        <source>of {0} GB</source>
        <translation>von {0} GB</translation>
    </message>
    <message>
        <source>limit {0} °C</source>
        <translation>Grenze {0} °C</translation>
    </message>
    <message>
        <source>cap {0} W</source>
        <translation>Grenze {0} W</translation>
    </message>
    <message>
        <source>its own address</source>
        <translation>die eigene Adresse</translation>
    </message>
</context>
<context>
    <name>IdentityCard</name>
    <message>
        <source>This computer&apos;s key</source>
        <translation>Der Schlüssel dieses Computers</translation>
    </message>
    <message>
        <source>The key is the wallet on this computer and its good name. Without a backup, a broken disk loses both.</source>
        <translation>Der Schlüssel ist die Geldbörse auf diesem Computer und sein guter Name. Ohne Sicherung nimmt ein Plattenschaden beides mit.</translation>
    </message>
    <message>
        <source>Save a &amp;backup…</source>
        <translation>&amp;Sicherung speichern …</translation>
    </message>
    <message>
        <source>Show the 24 &amp;words…</source>
        <translation>Die 24 &amp;Wörter zeigen …</translation>
    </message>
    <message>
        <source>Br&amp;ing one back…</source>
        <translation>Eine zurück&amp;holen …</translation>
    </message>
</context>
<context>
    <name>ImageRow</name>
    <message>
        <source>Accept…</source>
        <translation>Annehmen…</translation>
    </message>
    <message>
        <source>Accept the publisher of {0}</source>
        <translation>Den Herausgeber von {0} annehmen</translation>
    </message>
    <message>
        <source>{0} MB on the disk; it asks for {1} MB of memory and the graphics card.</source>
        <translation>{0} MB auf der Platte; es will {1} MB Speicher und die Grafikkarte.</translation>
    </message>
    <message>
        <source>{0} MB on the disk; it asks for {1} MB of memory.</source>
        <translation>{0} MB auf der Platte; es will {1} MB Speicher.</translation>
    </message>
    <message>
        <source>By {0}.</source>
        <translation>Von {0}.</translation>
    </message>
    <message>
        <source>It did not run: you have not accepted its publisher.</source>
        <translation>Es lief nicht: Sie haben seinen Herausgeber nicht angenommen.</translation>
    </message>
    <message>
        <source>It is here.</source>
        <translation>Es ist hier.</translation>
    </message>
    <message>
        <source>It is fetched when a job needs it.</source>
        <translation>Es wird geholt, wenn ein Auftrag es braucht.</translation>
    </message>
</context>
<context>
    <name>ImageSheet</name>
    <message>
        <source>The image that jobs run in</source>
        <translation>Das Abbild, in dem Aufträge laufen</translation>
    </message>
    <message>
        <source>The image that jobs run in is not here yet.</source>
        <translation>Das Abbild, in dem Aufträge laufen, ist noch nicht da.</translation>
    </message>
    <message>
        <source>It holds the training program and nothing of yours. It is fetched once, and its signature is checked.</source>
        <translation>Es enthält das Trainingsprogramm und nichts von Ihnen. Es wird einmal geholt, und seine Unterschrift wird geprüft.</translation>
    </message>
    <message>
        <source>&amp;Fetch it</source>
        <translation>&amp;Holen</translation>
    </message>
    <message>
        <source>Looking for the newest one.</source>
        <translation>Das neueste wird gesucht.</translation>
    </message>
    <message>
        <source>Fetching: {0} of {1} MB.</source>
        <translation>Es wird geholt: {0} von {1} MB.</translation>
    </message>
    <message>
        <source>The engine takes it: {0} of {1} MB.</source>
        <translation>Die Engine nimmt es auf: {0} von {1} MB.</translation>
    </message>
    <message>
        <source>It is here. Jobs can run.</source>
        <translation>Es ist da. Aufträge können laufen.</translation>
    </message>
    <message>
        <source>That did not work: {0}</source>
        <translation>Das ging nicht: {0}</translation>
    </message>
    <message>
        <source>This build names nobody whose image it takes. Make one of your own, in the folder of the source:</source>
        <translation>Diese Fassung nennt niemanden, dessen Abbild sie nimmt. Machen Sie ein eigenes, im Ordner der Quelle:</translation>
    </message>
</context>
<context>
    <name>ImagesCard</name>
    <message>
        <source>What jobs have asked for</source>
        <translation>Was Aufträge wollten</translation>
    </message>
    <message>
        <source>No job has asked for a program yet.</source>
        <translation>Noch kein Auftrag wollte ein Programm.</translation>
    </message>
</context>
<context>
    <name>InvitationWords</name>
    <message>
        <source>Write an address, or paste an invitation.</source>
        <translation>Schreiben Sie eine Adresse, oder fügen Sie eine Einladung ein.</translation>
    </message>
    <message>
        <source>That is no address. One looks like https://cottage.example.</source>
        <translation>Das ist keine Adresse. Eine sieht aus wie https://cottage.example.</translation>
    </message>
    <message>
        <source>That link is no invitation. One begins with cottage://join.</source>
        <translation>Dieser Link ist keine Einladung. Eine beginnt mit cottage://join.</translation>
    </message>
    <message>
        <source>The invitation is for a newer version of Cottage. Update it first.</source>
        <translation>Die Einladung ist für eine neuere Version von Cottage. Aktualisieren Sie es zuerst.</translation>
    </message>
    <message>
        <source>The invitation contradicts itself. Ask for another one.</source>
        <translation>Die Einladung widerspricht sich. Bitten Sie um eine andere.</translation>
    </message>
    <message>
        <source>The invitation names no address: a part of it is missing. Copy the whole of it.</source>
        <translation>Die Einladung nennt keine Adresse: Ein Teil von ihr fehlt. Kopieren Sie sie ganz.</translation>
    </message>
    <message>
        <source>The key in the invitation is damaged. Copy the whole of it.</source>
        <translation>Der Schlüssel in der Einladung ist beschädigt. Kopieren Sie sie ganz.</translation>
    </message>
    <message>
        <source>That is far too long for an invitation. Copy it once more.</source>
        <translation>Das ist viel zu lang für eine Einladung. Kopieren Sie sie noch einmal.</translation>
    </message>
</context>
<context>
    <name>JoinSheet</name>
    <message>
        <source>An invitation</source>
        <translation>Eine Einladung</translation>
    </message>
    <message>
        <source>&amp;Not now</source>
        <translation>&amp;Nicht jetzt</translation>
    </message>
    <message>
        <source>&amp;Lend to it</source>
        <translation>An dieses &amp;verleihen</translation>
    </message>
    <message>
        <source>This invitation cannot be used.</source>
        <translation>Diese Einladung lässt sich nicht verwenden.</translation>
    </message>
    <message>
        <source>&amp;Close</source>
        <translation>S&amp;chließen</translation>
    </message>
    <message>
        <source>Lend to {0}?</source>
        <translation>An {0} verleihen?</translation>
    </message>
    <message>
        <source>Cottage&apos;s agent is starting.</source>
        <translation>Der Agent von Cottage startet.</translation>
    </message>
    <message>
        <source>The invitation names no key: whoever answers at this address is believed.</source>
        <translation>Die Einladung nennt keinen Schlüssel: Wer auch immer unter dieser Adresse antwortet, dem wird geglaubt.</translation>
    </message>
    <message>
        <source>At each connection the network has to show that it holds the key {0}.</source>
        <translation>Bei jeder Verbindung muss das Netz zeigen, dass es den Schlüssel {0} hat.</translation>
    </message>
    <message>
        <source>Cottage&apos;s agent does not run, so nothing can be changed: {0}</source>
        <translation>Cottages Agent läuft nicht, darum lässt sich nichts ändern: {0}</translation>
    </message>
    <message>
        <source>This computer works for it already.</source>
        <translation>Dieser Computer arbeitet schon dafür.</translation>
    </message>
    <message>
        <source>Now it works for {0}. What runs there is handed over first.</source>
        <translation>Jetzt arbeitet er für {0}. Was dort läuft, wird zuerst übergeben.</translation>
    </message>
    <message>
        <source>The way there is not encrypted: others can read and change what is said.</source>
        <translation>Der Weg dorthin ist nicht verschlüsselt: Andere können lesen und ändern, was gesagt wird.</translation>
    </message>
</context>
<context>
    <name>Lending</name>
    <message>
        <source>Its answer cannot be understood ({0}). If Cottage was updated, stop lending and start again.</source>
        <translation>Seine Antwort ist nicht zu verstehen ({0}). Nach einer Aktualisierung: aufhören und neu beginnen.</translation>
    </message>
    <message>
        <source>It has been ending for {0} seconds. Flip the switch to ask it once more.</source>
        <translation>Er endet seit {0} Sekunden. Der Schalter bittet ihn noch einmal.</translation>
    </message>
</context>
<context>
    <name>MainWindow</name>
    <message>
        <source>Cottage</source>
        <translation>Cottage</translation>
    </message>
    <message>
        <source>Overview</source>
        <translation>Übersicht</translation>
    </message>
    <message>
        <source>Earnings</source>
        <translation>Einnahmen</translation>
    </message>
    <message>
        <source>Activity</source>
        <translation>Verlauf</translation>
    </message>
    <message>
        <source>Settings</source>
        <translation>Einstellungen</translation>
    </message>
    <message>
        <source>Page</source>
        <translation>Seite</translation>
    </message>
</context>
<context>
    <name>NetworkField</name>
    <message>
        <source>https://… or cottage://join?…</source>
        <translation>https://… oder cottage://join?…</translation>
    </message>
</context>
<context>
    <name>NoEarningsCard</name>
    <message>
        <source>Picture of a graphics card</source>
        <translation>Bild einer Grafikkarte</translation>
    </message>
    <message>
        <source>Picture of a processor</source>
        <translation>Bild eines Prozessors</translation>
    </message>
    <message>
        <source>Nothing earned yet</source>
        <translation>Noch nichts verdient</translation>
    </message>
    <message>
        <source>Jobs come by themselves while lending is on. Their work is checked, and then paid. Each job will be a row here: what it brought, whether it is paid, and why not where it is not.</source>
        <translation>Aufträge kommen von selbst, solange das Verleihen an ist. Ihre Arbeit wird geprüft und dann bezahlt. Jeder Auftrag wird hier eine Zeile: was er gebracht hat, ob er bezahlt ist, und warum nicht, wo er es nicht ist.</translation>
    </message>
    <message>
        <source>&amp;Start lending</source>
        <translation>Verleihen &amp;starten</translation>
    </message>
    <message>
        <source>Now: {0} {1}</source>
        <translation>Jetzt: {0} {1}</translation>
    </message>
</context>
<context>
    <name>PauseMenu</name>
    <message>
        <source>&amp;Pause</source>
        <translation>&amp;Pause</translation>
    </message>
    <message>
        <source>&amp;Lend now, for 1 hour</source>
        <translation>Jetzt ver&amp;leihen, für 1 Stunde</translation>
    </message>
    <message>
        <source>For 1&amp;5 minutes</source>
        <translation>Für 1&amp;5 Minuten</translation>
    </message>
    <message>
        <source>For &amp;30 minutes</source>
        <translation>Für &amp;30 Minuten</translation>
    </message>
    <message>
        <source>For &amp;1 hour</source>
        <translation>&amp;1 Stunde</translation>
    </message>
    <message>
        <source>For &amp;4 hours</source>
        <translation>&amp;4 Stunden</translation>
    </message>
    <message>
        <source>Until &amp;tomorrow</source>
        <translation>Bis &amp;morgen</translation>
    </message>
    <message>
        <source>&amp;Go on</source>
        <translation>&amp;Weitermachen</translation>
    </message>
    <message>
        <source>&amp;Finish the current job, then stop</source>
        <translation>Auftrag noch &amp;beenden, dann aufhören</translation>
    </message>
</context>
<context>
    <name>PayWords</name>
    <message>
        <source>It failed on this computer: {0}</source>
        <translation>Auf diesem Computer fehlgeschlagen: {0}</translation>
    </message>
    <message>
        <source>It failed here.</source>
        <translation>Hier fehlgeschlagen.</translation>
    </message>
    <message>
        <source>The agent says “{0}”, which this window does not know yet.</source>
        <translation>Der Agent meldet „{0}“, was dieses Fenster noch nicht kennt.</translation>
    </message>
    <message>
        <source>Paid.</source>
        <translation>Bezahlt.</translation>
    </message>
    <message>
        <source>Its audit is not over yet.</source>
        <translation>Die Prüfung läuft noch.</translation>
    </message>
    <message>
        <source>It waits until the operator&apos;s computer has looked at the work that was drawn.</source>
        <translation>Wartet, bis der Rechner des Betreibers die ausgeloste Arbeit angesehen hat.</translation>
    </message>
    <message>
        <source>Verified. It is paid once it is worth the ledger&apos;s fee.</source>
        <translation>Geprüft. Ausgezahlt wird, sobald es die Gebühr des Ledgers wert ist.</translation>
    </message>
    <message>
        <source>Verified. Its payment waits for the ledger.</source>
        <translation>Geprüft. Die Auszahlung wartet auf den Ledger.</translation>
    </message>
    <message>
        <source>Promised on the ledger: it can be claimed there, even without the coordinator.</source>
        <translation>Auf dem Ledger zugesagt: Es lässt sich dort abrufen, auch ohne den Koordinator.</translation>
    </message>
    <message>
        <source>Verified, but the ledger refuses to pay it: tell the coordinator&apos;s operator.</source>
        <translation>Geprüft, aber der Ledger lehnt die Auszahlung ab: Bitte den Betreiber des Koordinators benachrichtigen.</translation>
    </message>
    <message>
        <source>The coordinator is not connected; this is what it said last.</source>
        <translation>Keine Verbindung zum Koordinator; das ist sein letzter Stand.</translation>
    </message>
    <message>
        <source>The coordinator has not said yet what became of it.</source>
        <translation>Der Koordinator hat noch nicht gemeldet, was daraus geworden ist.</translation>
    </message>
    <message>
        <source>Not paid: the round had lost too many computers and was done again.</source>
        <translation>Nicht bezahlt: Die Runde hatte zu viele Computer verloren und wurde wiederholt.</translation>
    </message>
    <message>
        <source>Not paid: the job ended in the middle of the round.</source>
        <translation>Nicht bezahlt: Der Auftrag endete mitten in der Runde.</translation>
    </message>
    <message>
        <source>Not paid: this computer left before it had shown what its audit asked for.</source>
        <translation>Nicht bezahlt: Dieser Computer ging, bevor er gezeigt hatte, was die Prüfung verlangte.</translation>
    </message>
    <message>
        <source>Not paid: this computer did not show what its audit asked for.</source>
        <translation>Nicht bezahlt: Dieser Computer hat nicht gezeigt, was die Prüfung verlangte.</translation>
    </message>
    <message>
        <source>Not paid: the work names another kind of computer than this one had said to be.</source>
        <translation>Nicht bezahlt: Die Arbeit nennt eine andere Art von Computer, als dieser angegeben hatte.</translation>
    </message>
    <message>
        <source>Not paid: another computer came to something else, and no second one could tell who is right.</source>
        <translation>Nicht bezahlt: Ein anderer Computer kam zu einem anderen Ergebnis, und kein zweiter konnte entscheiden, wer recht hat.</translation>
    </message>
    <message>
        <source>Not paid: others ran it again and came to something else.</source>
        <translation>Nicht bezahlt: Andere haben nachgerechnet und kamen zu einem anderen Ergebnis.</translation>
    </message>
    <message>
        <source>Not paid: the operator&apos;s computer came to something too far off, which proves nothing against this one.</source>
        <translation>Nicht bezahlt: Der Computer des Betreibers kam auf etwas zu weit Entferntes; das beweist nichts gegen diesen.</translation>
    </message>
    <message>
        <source>No round or period with this computer has ended yet.</source>
        <translation>Noch keine Runde und kein Abschnitt mit diesem Computer ist zu Ende.</translation>
    </message>
    <message>
        <source>Its submitter cancelled the job before a round or period with this computer had ended.</source>
        <translation>Der Auftraggeber hat den Auftrag abgebrochen, bevor eine Runde oder ein Abschnitt mit diesem Computer zu Ende war.</translation>
    </message>
    <message>
        <source>The job failed before a round or period with this computer had ended.</source>
        <translation>Der Auftrag ist gescheitert, bevor eine Runde oder ein Abschnitt mit diesem Computer zu Ende war.</translation>
    </message>
    <message>
        <source>The job ended before a round or period with this computer had ended.</source>
        <translation>Der Auftrag endete, bevor eine Runde oder ein Abschnitt mit diesem Computer zu Ende war.</translation>
    </message>
    <message>
        <source>The job is paused, and no round or period with this computer has ended yet.</source>
        <translation>Der Auftrag ist angehalten, und noch keine Runde und kein Abschnitt mit diesem Computer ist zu Ende.</translation>
    </message>
    <message>
        <source>This computer left before a round or period with it had ended.</source>
        <translation>Dieser Computer ging, bevor eine Runde oder ein Abschnitt mit ihm zu Ende war.</translation>
    </message>
    <message>
        <source>This computer was not heard of any more before a round or period with it had ended.</source>
        <translation>Von diesem Computer war nichts mehr zu hören, bevor eine Runde oder ein Abschnitt mit ihm zu Ende war.</translation>
    </message>
    <message>
        <source>This computer kept the others waiting too long before a round or period with it had ended.</source>
        <translation>Dieser Computer ließ die anderen zu lange warten, bevor eine Runde oder ein Abschnitt mit ihm zu Ende war.</translation>
    </message>
    <message>
        <source>Another computer took its place before a round or period with it had ended.</source>
        <translation>Ein anderer Computer nahm seinen Platz ein, bevor eine Runde oder ein Abschnitt mit diesem zu Ende war.</translation>
    </message>
    <message>
        <source>This computer was sent away before a round or period with it had ended.</source>
        <translation>Dieser Computer wurde weggeschickt, bevor eine Runde oder ein Abschnitt mit ihm zu Ende war.</translation>
    </message>
    <message>
        <source>Not paid: the job ended before anybody had looked at it.</source>
        <translation>Nicht bezahlt: Der Auftrag endete, bevor jemand nachgesehen hatte.</translation>
    </message>
    <message>
        <source>Not paid: the data stays at its owner, so nobody can check the work.</source>
        <translation>Nicht bezahlt: Die Daten bleiben bei ihrem Besitzer, also kann niemand die Arbeit prüfen.</translation>
    </message>
    <message>
        <source>Not paid: what came in left nothing to compute. Another computer may have sent it that.</source>
        <translation>Nicht bezahlt: Was hereinkam, ließ nichts zu rechnen. Vielleicht hat es ein anderer Computer so geschickt.</translation>
    </message>
    <message>
        <source>Not paid: this computer was sent away, and its unpaid work of the job is void.</source>
        <translation>Nicht bezahlt: Dieser Computer wurde weggeschickt; seine unbezahlte Arbeit an diesem Auftrag verfällt.</translation>
    </message>
    <message>
        <source>1 share</source>
        <translation>1 Anteil</translation>
    </message>
    <message>
        <source>{0} shares</source>
        <translation>{0} Anteile</translation>
    </message>
    <message>
        <source>Not paid: the computers that held the model together with this one were not complete when the round ended.</source>
        <translation>Nicht bezahlt: Die Computer, die das Modell mit diesem zusammen hielten, waren nicht vollzählig, als die Runde endete.</translation>
    </message>
    <message>
        <source>Not paid: another computer&apos;s part of the round was false, or was not shown, and this one is not known well enough yet.</source>
        <translation>Nicht bezahlt: Der Teil eines anderen Computers an der Runde war falsch oder wurde nicht gezeigt, und diesen hier kennt man noch nicht gut genug.</translation>
    </message>
    <message>
        <source>This computer stood by, without a part of the model. That is not paid.</source>
        <translation>Dieser Computer stand bereit, ohne einen Teil des Modells. Das wird nicht bezahlt.</translation>
    </message>
</context>
<context>
    <name>PowerPriceRow</name>
    <message>
        <source>What a kWh costs you:</source>
        <translation>Was Sie eine kWh kostet:</translation>
    </message>
    <message>
        <source>What a kWh costs you</source>
        <translation>Was Sie eine kWh kostet</translation>
    </message>
    <message>
        <source>tokens</source>
        <translation>Token</translation>
    </message>
    <message>
        <source>The currency, as three letters</source>
        <translation>Die Währung mit drei Buchstaben</translation>
    </message>
</context>
<context>
    <name>ProofCheck</name>
    <message>
        <source>The check cannot be started: {0}.</source>
        <translation>Die Prüfung lässt sich nicht starten: {0}.</translation>
    </message>
    <message>
        <source>The check took longer than {0} minutes and was ended.</source>
        <translation>Die Prüfung hat länger als {0} Minuten gedauert und wurde beendet.</translation>
    </message>
    <message>
        <source>The check ended without a word.</source>
        <translation>Die Prüfung endete ohne ein Wort.</translation>
    </message>
    <message>
        <source>It cannot be checked now: {0}</source>
        <translation>Es lässt sich jetzt nicht prüfen: {0}</translation>
    </message>
    <message>
        <source>What the check says cannot be understood: is it of another version?</source>
        <translation>Was die Prüfung sagt, ist nicht zu verstehen: Ist sie von einer anderen Version?</translation>
    </message>
    <message>
        <source>✕ Not true: {0}. The ledger shows something else than the coordinator says.</source>
        <translation>✕ Nicht wahr: {0}. Der Ledger zeigt etwas anderes, als der Koordinator sagt.</translation>
    </message>
    <message>
        <source>{0} checks hold. Not everything could be checked, since the coordinator was restored.</source>
        <translation>{0} Prüfungen stimmen. Nicht alles ließ sich prüfen, weil der Koordinator wiederhergestellt wurde.</translation>
    </message>
    <message>
        <source>✓ {0} checks hold: the ledger shows what the coordinator says of this job.</source>
        <translation>✓ {0} Prüfungen stimmen: Der Ledger zeigt, was der Koordinator von diesem Auftrag sagt.</translation>
    </message>
    <message>
        <source>{0} more cannot be seen on the ledger alone; the command names them.</source>
        <translation>{0} weitere lassen sich am Ledger allein nicht sehen; der Befehl nennt sie.</translation>
    </message>
</context>
<context>
    <name>PublisherRow</name>
    <message>
        <source>Key</source>
        <translation>Schlüssel</translation>
    </message>
    <message>
        <source>Remove</source>
        <translation>Entfernen</translation>
    </message>
    <message>
        <source>Remove {0}</source>
        <translation>{0} entfernen</translation>
    </message>
    <message>
        <source>Cottage&apos;s own programs are always accepted.</source>
        <translation>Cottages eigene Programme sind immer angenommen.</translation>
    </message>
</context>
<context>
    <name>PublishersCard</name>
    <message>
        <source>Programs of others</source>
        <translation>Programme anderer</translation>
    </message>
    <message>
        <source>Some jobs bring a program as an image. It computes in a container, without network and without your files. It runs here only if you accept whoever has signed it.</source>
        <translation>Manche Aufträge bringen ein Programm mit, als Abbild. Es rechnet in einem Container, ohne Netz und ohne Ihre Dateien. Hier läuft es nur, wenn Sie annehmen, wer es unterschrieben hat.</translation>
    </message>
    <message>
        <source>&amp;Accept a publisher…</source>
        <translation>Einen &amp;Herausgeber annehmen…</translation>
    </message>
    <message>
        <source>Nobody is accepted, so no such job comes here.</source>
        <translation>Niemand ist angenommen, also kommt kein solcher Auftrag hierher.</translation>
    </message>
    <message>
        <source>Images of {0} run here no more; what has begun goes on.</source>
        <translation>Abbilder von {0} laufen hier nicht mehr; was begonnen hat, geht weiter.</translation>
    </message>
    <message>
        <source>Images of {0} run here now.</source>
        <translation>Abbilder von {0} laufen jetzt hier.</translation>
    </message>
</context>
<context>
    <name>RestoreSheet</name>
    <message>
        <source>Bring a key back</source>
        <translation>Einen Schlüssel zurückholen</translation>
    </message>
    <message>
        <source>This computer becomes the one of the backup: its wallet and its good name. Lending must be off.</source>
        <translation>Dieser Computer wird der aus der Sicherung: mit dessen Geldbörse und gutem Namen. Das Verleihen muss aus sein.</translation>
    </message>
    <message>
        <source>Choose the &amp;file…</source>
        <translation>&amp;Datei wählen …</translation>
    </message>
    <message>
        <source>Use the &amp;words</source>
        <translation>Die &amp;Wörter nehmen</translation>
    </message>
    <message>
        <source>Passphrase of the backup</source>
        <translation>Kennwort der Sicherung</translation>
    </message>
    <message>
        <source>Or the 24 words that Cottage has shown</source>
        <translation>Oder die 24 Wörter, die Cottage gezeigt hat</translation>
    </message>
    <message>
        <source>&amp;Close</source>
        <translation>S&amp;chließen</translation>
    </message>
    <message>
        <source>Never the words of another wallet: Cottage has no use for them, whoever asks wants to rob you.</source>
        <translation>Nie die Wörter einer anderen Geldbörse: Cottage braucht sie nicht; wer danach fragt, will Sie berauben.</translation>
    </message>
    <message>
        <source>Cottage backup (*.cottage)</source>
        <translation>Cottage-Sicherung (*.cottage)</translation>
    </message>
    <message>
        <source>This computer is {0} now.</source>
        <translation>Dieser Computer ist jetzt {0}.</translation>
    </message>
</context>
<context>
    <name>Sentences</name>
    <message>
        <source>The agent does not run.</source>
        <translation>Der Agent läuft nicht.</translation>
    </message>
    <message>
        <source>One moment.</source>
        <translation>Einen Augenblick.</translation>
    </message>
    <message>
        <source>Cottage&apos;s agent is starting.</source>
        <translation>Der Agent von Cottage startet.</translation>
    </message>
    <message>
        <source>The agent needs your attention.</source>
        <translation>Der Agent braucht Sie.</translation>
    </message>
    <message>
        <source>Lending is off.</source>
        <translation>Das Verleihen ist aus.</translation>
    </message>
    <message>
        <source>This computer is all yours.</source>
        <translation>Dieser Computer gehört ganz Ihnen.</translation>
    </message>
    <message>
        <source>Jobs cannot run here yet.</source>
        <translation>Hier können noch keine Aufträge laufen.</translation>
    </message>
    <message>
        <source>Lending has stopped.</source>
        <translation>Das Verleihen wurde angehalten.</translation>
    </message>
    <message>
        <source>Trying to reach {0}.</source>
        <translation>Versucht, {0} zu erreichen.</translation>
    </message>
    <message>
        <source>Not connected.</source>
        <translation>Nicht verbunden.</translation>
    </message>
    <message>
        <source>The coordinator refuses this computer.</source>
        <translation>Der Koordinator lehnt diesen Computer ab.</translation>
    </message>
    <message>
        <source>Finishing.</source>
        <translation>Wird beendet.</translation>
    </message>
    <message>
        <source>What runs is completed; then lending stops.</source>
        <translation>Was läuft, wird fertig; dann hört das Verleihen auf.</translation>
    </message>
    <message>
        <source>What runs is completed; then the agent begins anew and lends again.</source>
        <translation>Was läuft, wird fertig; dann beginnt der Agent neu und verleiht wieder.</translation>
    </message>
    <message>
        <source>No other job is taken until you switch lending on again. Another time within {0} days costs {1} % of this computer&apos;s stake.</source>
        <translation>Es wird kein weiterer Auftrag angenommen, bis Sie das Verleihen wieder einschalten. Ein weiteres Mal binnen {0} Tagen kostet {1} % des Einsatzes dieses Computers.</translation>
    </message>
    <message>
        <source>This computer did not show a piece of its work when an audit asked for it: that round is not paid.</source>
        <translation>Dieser Computer hat ein Stück seiner Arbeit nicht gezeigt, als eine Prüfung danach fragte: diese Runde wird nicht bezahlt.</translation>
    </message>
    <message>
        <source>Somebody reached into a job on this computer: {0}.</source>
        <translation>Jemand hat auf diesem Computer in einen Auftrag eingegriffen: {0}.</translation>
    </message>
    <message>
        <source>{0} jobs in a row failed before their first step; the last one: {1}.</source>
        <translation>{0} Aufträge nacheinander sind vor ihrem ersten Schritt gescheitert; der letzte: {1}.</translation>
    </message>
    <message>
        <source>Lending goes on by itself once it answers.</source>
        <translation>Das Verleihen geht von selbst weiter, sobald Docker antwortet.</translation>
    </message>
    <message>
        <source>The image that jobs run in is not here yet. Lending goes on by itself once it is.</source>
        <translation>Das Abbild, in dem Aufträge laufen, ist noch nicht da. Das Verleihen geht von selbst weiter, sobald es da ist.</translation>
    </message>
    <message>
        <source>The engine that DOCKER_HOST names does not answer: {0}.</source>
        <translation>Die Engine, die DOCKER_HOST nennt, antwortet nicht: {0}.</translation>
    </message>
    <message>
        <source>The agent checks its sandbox and measures this computer. The first time takes about a minute.</source>
        <translation>Der Agent prüft seine Abschottung und misst diesen Computer. Beim ersten Mal dauert das etwa eine Minute.</translation>
    </message>
    <message>
        <source>Getting ready.</source>
        <translation>Bereitet vor.</translation>
    </message>
    <message>
        <source>The agent hands over what it has done; what was verified is paid.</source>
        <translation>Der Agent übergibt, was getan ist; was geprüft wurde, wird bezahlt.</translation>
    </message>
    <message>
        <source>Stopping.</source>
        <translation>Hört auf.</translation>
    </message>
    <message>
        <source>Paused.</source>
        <translation>Pause.</translation>
    </message>
    <message>
        <source>Paused until {0}.</source>
        <translation>Pause bis {0}.</translation>
    </message>
    <message>
        <source>The job waits a moment, nothing is lost.</source>
        <translation>Der Auftrag wartet kurz, nichts geht verloren.</translation>
    </message>
    <message>
        <source>You asked for a pause. It goes on by itself.</source>
        <translation>Sie wollten eine Pause. Danach geht es von selbst weiter.</translation>
    </message>
    <message>
        <source>{0} is running. It goes on a minute after that ends.</source>
        <translation>{0} läuft. Eine Minute nach dessen Ende geht es weiter.</translation>
    </message>
    <message>
        <source>Somebody is at the computer. It goes on when nobody is.</source>
        <translation>Jemand ist am Computer. Ist niemand da, geht es weiter.</translation>
    </message>
    <message>
        <source>This system does not tell whether somebody is here. Settings, When: lend while I work, too.</source>
        <translation>Dieses System sagt nicht, ob jemand da ist. Einstellungen, Wann: auch verleihen, während ich arbeite.</translation>
    </message>
    <message>
        <source>The computer runs on battery. It goes on when mains are back.</source>
        <translation>Der Computer läuft auf Batterie. Am Netz geht es weiter.</translation>
    </message>
    <message>
        <source>These are not your lending hours.</source>
        <translation>Dies sind nicht Ihre Verleihstunden.</translation>
    </message>
    <message>
        <source>The GPU is at {0} °C. It goes on when it has cooled down.</source>
        <translation>Die GPU hat {0} °C. Ist sie abgekühlt, geht es weiter.</translation>
    </message>
    <message>
        <source>Your own programs use {0} GB of the GPU&apos;s memory.</source>
        <translation>Ihre eigenen Programme nutzen {0} GB des GPU-Speichers.</translation>
    </message>
    <message>
        <source>The network costs by the byte.</source>
        <translation>Das Netz kostet je Byte.</translation>
    </message>
    <message>
        <source>This month&apos;s data is used up. Settings, How much: the monthly cap.</source>
        <translation>Das Datenvolumen des Monats ist verbraucht. Einstellungen, Wie viel: die Monatsgrenze.</translation>
    </message>
    <message>
        <source>Only {0} GB are free on the disk.</source>
        <translation>Nur {0} GB sind auf der Platte frei.</translation>
    </message>
    <message>
        <source>Waiting for a job.</source>
        <translation>Wartet auf einen Auftrag.</translation>
    </message>
    <message>
        <source>Connected. Nobody needs this computer right now.</source>
        <translation>Verbunden. Gerade braucht niemand diesen Computer.</translation>
    </message>
    <message>
        <source>Showing its work on “{0}” once more.</source>
        <translation>Zeigt die Arbeit an „{0}“ noch einmal.</translation>
    </message>
    <message>
        <source>Your computer reads this model into its memory, and answers with it then.</source>
        <translation>Ihr Computer lädt dieses Modell in seinen Speicher und antwortet dann damit.</translation>
    </message>
    <message>
        <source>Loading “{0}”.</source>
        <translation>Lädt „{0}“.</translation>
    </message>
    <message>
        <source>Fetching its files: {0} are here.</source>
        <translation>Holt die Dateien: {0} sind da.</translation>
    </message>
    <message>
        <source>Preparing “{0}”.</source>
        <translation>Bereitet „{0}“ vor.</translation>
    </message>
    <message>
        <source>Fetching its files and starting it.</source>
        <translation>Holt die Dateien und startet.</translation>
    </message>
    <message>
        <source>A spare for this job: it steps in when another computer leaves.</source>
        <translation>Ersatz für diesen Auftrag: springt ein, wenn ein anderer Computer geht.</translation>
    </message>
    <message>
        <source>Standing by for “{0}”.</source>
        <translation>Steht bereit für „{0}“.</translation>
    </message>
    <message>
        <source>Your computer is training a part of this model.</source>
        <translation>Ihr Computer trainiert einen Teil dieses Modells.</translation>
    </message>
    <message>
        <source>Your computer is training a part of this model. Other tasks that it works on: {0}.</source>
        <translation>Ihr Computer trainiert einen Teil dieses Modells. Weitere Aufgaben, an denen er arbeitet: {0}.</translation>
    </message>
    <message>
        <source>Lending to “{0}”.</source>
        <translation>Arbeitet für „{0}“.</translation>
    </message>
    <message>
        <source>Your computer holds part {0} of {1} of this model, and answers together with others.</source>
        <translation>Ihr Computer hält Teil {0} von {1} dieses Modells und antwortet zusammen mit anderen.</translation>
    </message>
    <message>
        <source>Waiting for the others of “{0}”.</source>
        <translation>Wartet auf die anderen für „{0}“.</translation>
    </message>
    <message>
        <source>Your computer is ready and waits for the other computers that hold this model with it. Nothing is earned meanwhile.</source>
        <translation>Ihr Computer ist bereit und wartet auf die anderen Computer, die dieses Modell mit ihm halten. Solange wird nichts verdient.</translation>
    </message>
    <message>
        <source>Other tasks that it works on: {0}.</source>
        <translation>Weitere Aufgaben, an denen er arbeitet: {0}.</translation>
    </message>
    <message>
        <source>Your computer holds this model and answers with it.</source>
        <translation>Ihr Computer hält dieses Modell und antwortet damit.</translation>
    </message>
    <message>
        <source>Your computer holds this model and answers with it. Other tasks that it works on: {0}.</source>
        <translation>Ihr Computer hält dieses Modell und antwortet damit. Weitere Aufgaben, an denen er arbeitet: {0}.</translation>
    </message>
    <message>
        <source>Answering for “{0}”.</source>
        <translation>Antwortet für „{0}“.</translation>
    </message>
    <message>
        <source>The whole model</source>
        <translation>Das ganze Modell</translation>
    </message>
    <message>
        <source>Spare</source>
        <translation>Ersatz</translation>
    </message>
    <message>
        <source>Part {0} of the model</source>
        <translation>Teil {0} des Modells</translation>
    </message>
    <message>
        <source>Answering</source>
        <translation>Antwortet</translation>
    </message>
    <message>
        <source>{0} of the job done</source>
        <translation>{0} des Auftrags getan</translation>
    </message>
    <message>
        <source>Stage {0}, replica {1}</source>
        <translation>Stufe {0}, Replik {1}</translation>
    </message>
    <message>
        <source>Back after a crash: shows the work of round {0}, so that it is paid</source>
        <translation>Zurück nach einem Absturz: zeigt die Arbeit der Runde {0}, damit sie bezahlt wird</translation>
    </message>
    <message>
        <source>Part {0} of {1} of the model</source>
        <translation>Teil {0} von {1} des Modells</translation>
    </message>
    <message>
        <source>Fetching its files, {0}</source>
        <translation>Holt die Dateien, {0}</translation>
    </message>
    <message>
        <source>Fetching its files</source>
        <translation>Holt die Dateien</translation>
    </message>
    <message>
        <source>Loading the model</source>
        <translation>Lädt das Modell</translation>
    </message>
    <message>
        <source>Starting</source>
        <translation>Startet</translation>
    </message>
    <message>
        <source>Ready, waits for the others</source>
        <translation>Bereit, wartet auf die anderen</translation>
    </message>
    <message>
        <source>Running</source>
        <translation>Läuft</translation>
    </message>
    <message>
        <source>Ended</source>
        <translation>Beendet</translation>
    </message>
    <message>
        <source>Failed</source>
        <translation>Fehlgeschlagen</translation>
    </message>
    <message>
        <source>Round {0}</source>
        <translation>Runde {0}</translation>
    </message>
    <message>
        <source>step {0}</source>
        <translation>Schritt {0}</translation>
    </message>
    <message>
        <source>loss {0:.3f}</source>
        <translation>Verlust {0:.3f}</translation>
    </message>
    <message>
        <source>lending</source>
        <translation>verleiht</translation>
    </message>
    <message>
        <source>waiting</source>
        <translation>wartet</translation>
    </message>
    <message>
        <source>paused</source>
        <translation>Pause</translation>
    </message>
    <message>
        <source>off</source>
        <translation>aus</translation>
    </message>
    <message>
        <source>needs your attention</source>
        <translation>braucht Sie</translation>
    </message>
</context>
<context>
    <name>SettingsPages</name>
    <message>
        <source>When</source>
        <translation>Wann</translation>
    </message>
    <message>
        <source>How much</source>
        <translation>Wie viel</translation>
    </message>
    <message>
        <source>Money</source>
        <translation>Geld</translation>
    </message>
    <message>
        <source>Programs</source>
        <translation>Programme</translation>
    </message>
    <message>
        <source>Notifications</source>
        <translation>Meldungen</translation>
    </message>
    <message>
        <source>Appearance</source>
        <translation>Darstellung</translation>
    </message>
    <message>
        <source>Privacy &amp; about</source>
        <translation>Datenschutz &amp; Info</translation>
    </message>
    <message>
        <source>Settings</source>
        <translation>Einstellungen</translation>
    </message>
    <message>
        <source>&amp;Undo</source>
        <translation>&amp;Zurücknehmen</translation>
    </message>
    <message>
        <source>Changes are in force at once.</source>
        <translation>Änderungen gelten sofort.</translation>
    </message>
    <message>
        <source>lends</source>
        <translation>verleiht</translation>
    </message>
    <message>
        <source>does not lend</source>
        <translation>verleiht nicht</translation>
    </message>
    <message>
        <source>Lend once nobody has touched the computer for</source>
        <translation>Verleihen, wenn niemand den Computer benutzt hat seit</translation>
    </message>
    <message>
        <source>“At once”: lend while somebody works here, too.</source>
        <translation>„Sofort“: auch verleihen, während jemand hier arbeitet.</translation>
    </message>
    <message>
        <source> min</source>
        <translation> min</translation>
    </message>
    <message>
        <source>at once</source>
        <translation>sofort</translation>
    </message>
    <message>
        <source>Step aside for games</source>
        <translation>Für Spiele Platz machen</translation>
    </message>
    <message>
        <source>For programs that cover the whole screen, and those below; within two seconds.</source>
        <translation>Für Programme im Vollbild und die folgenden; binnen zwei Sekunden.</translation>
    </message>
    <message>
        <source>Programs to step aside for</source>
        <translation>Programme, die Vorrang haben</translation>
    </message>
    <message>
        <source>Names as the process list has them, separated by commas.</source>
        <translation>Namen wie in der Prozessliste, durch Kommas getrennt.</translation>
    </message>
    <message>
        <source>Lend on battery</source>
        <translation>Auf Batterie verleihen</translation>
    </message>
    <message>
        <source>Lend over networks that cost by the byte</source>
        <translation>Auch über Netze verleihen, die je Byte kosten</translation>
    </message>
    <message>
        <source>Hours of the week</source>
        <translation>Stunden der Woche</translation>
    </message>
    <message>
        <source>Drag over the hours, or use arrow keys and space bar. Filled hours are lent.</source>
        <translation>Über die Stunden ziehen, oder Pfeiltasten und Leertaste. Gefüllte Stunden werden verliehen.</translation>
    </message>
    <message>
        <source>What is lent</source>
        <translation>Was verliehen wird</translation>
    </message>
    <message>
        <source>What runs is handed over when you change it.</source>
        <translation>Was läuft, wird bei einer Änderung übergeben.</translation>
    </message>
    <message>
        <source>GPU memory kept for you</source>
        <translation>GPU-Speicher, der Ihnen bleibt</translation>
    </message>
    <message>
        <source>Jobs step aside when your programs want more.</source>
        <translation>Aufträge machen Platz, wenn Ihre Programme mehr wollen.</translation>
    </message>
    <message>
        <source>Hottest that the GPU may get</source>
        <translation>So heiß darf die GPU werden</translation>
    </message>
    <message>
        <source>It pauses there, and goes on once it has cooled down.</source>
        <translation>Dort wird pausiert; abgekühlt geht es weiter.</translation>
    </message>
    <message>
        <source>It goes on when cooler by</source>
        <translation>Weiter geht es, wenn sie kühler ist um</translation>
    </message>
    <message>
        <source>Disk that stays free</source>
        <translation>Platte, die frei bleibt</translation>
    </message>
    <message>
        <source>Processors</source>
        <translation>Prozessoren</translation>
    </message>
    <message>
        <source>all</source>
        <translation>alle</translation>
    </message>
    <message>
        <source>Main memory for jobs</source>
        <translation>Hauptspeicher für Aufträge</translation>
    </message>
    <message>
        <source>With processors and GPU: what runs is handed over first.</source>
        <translation>Wie bei Prozessoren und GPU: Was läuft, wird erst übergeben.</translation>
    </message>
    <message>
        <source>half</source>
        <translation>die Hälfte</translation>
    </message>
    <message>
        <source>Disk for jobs&apos; files</source>
        <translation>Platte für Dateien der Aufträge</translation>
    </message>
    <message>
        <source>Power cap of the GPU</source>
        <translation>Leistungsgrenze der GPU</translation>
    </message>
    <message>
        <source>its own</source>
        <translation>ihre eigene</translation>
    </message>
    <message>
        <source>Upload</source>
        <translation>Hochladen</translation>
    </message>
    <message>
        <source>no limit</source>
        <translation>ohne Grenze</translation>
    </message>
    <message>
        <source>Download</source>
        <translation>Herunterladen</translation>
    </message>
    <message>
        <source>A calendar month, both ways</source>
        <translation>Ein Kalendermonat, beide Richtungen</translation>
    </message>
    <message>
        <source>Yield to the household&apos;s own traffic</source>
        <translation>Dem eigenen Verkehr des Haushalts weichen</translation>
    </message>
    <message>
        <source>Paid into</source>
        <translation>Zahlt an</translation>
    </message>
    <message>
        <source>Empty: the wallet on this computer. Not the address of an exchange: some lose such payments.</source>
        <translation>Leer: die Geldbörse auf diesem Computer. Nicht die Adresse einer Börse: manche verlieren solche Zahlungen.</translation>
    </message>
    <message>
        <source>the wallet on this computer</source>
        <translation>die Geldbörse auf diesem Computer</translation>
    </message>
    <message>
        <source>Work for no less than</source>
        <translation>Arbeitet nicht für weniger als</translation>
    </message>
    <message>
        <source>Tokens for as much work as a fast graphics card does in about half a minute. Empty: for any price.</source>
        <translation>Token für so viel Arbeit, wie eine schnelle Grafikkarte in etwa einer halben Minute tut. Leer: zu jedem Preis.</translation>
    </message>
    <message>
        <source>any price</source>
        <translation>jeder Preis</translation>
    </message>
    <message>
        <source>For a million billion (10^15) operations.</source>
        <translation>Für eine Billiarde (10^15) Rechenschritte.</translation>
    </message>
    <message>
        <source>Your currency</source>
        <translation>Ihre Währung</translation>
    </message>
    <message>
        <source>Three letters, as EUR. Amounts are shown in it, too, where somebody says what a token is worth.</source>
        <translation>Drei Buchstaben, etwa EUR. Beträge stehen auch in ihr da, wenn jemand sagt, was ein Token wert ist.</translation>
    </message>
    <message>
        <source>none: tokens</source>
        <translation>keine: Token</translation>
    </message>
    <message>
        <source>A token is worth</source>
        <translation>Ein Token ist wert</translation>
    </message>
    <message>
        <source>In your currency. Empty: what the network says.</source>
        <translation>In Ihrer Währung. Leer: was das Netz sagt.</translation>
    </message>
    <message>
        <source>as the network says</source>
        <translation>wie das Netz sagt</translation>
    </message>
    <message>
        <source>A kWh costs you</source>
        <translation>Eine kWh kostet Sie</translation>
    </message>
    <message>
        <source>not given</source>
        <translation>nicht angegeben</translation>
    </message>
    <message>
        <source>Put up against false work</source>
        <translation>Einsatz gegen falsche Arbeit</translation>
    </message>
    <message>
        <source>Tokens at a time, to have neighbours&apos; work looked at. A false accusation loses them.</source>
        <translation>Token auf einmal, um Arbeit von Nachbarn prüfen zu lassen. Wer zu Unrecht beschuldigt, verliert sie.</translation>
    </message>
    <message>
        <source>nothing</source>
        <translation>nichts</translation>
    </message>
    <message>
        <source>Cottage never asks for the secret words of another wallet. Whoever does wants to rob you.</source>
        <translation>Cottage fragt nie nach den geheimen Wörtern einer anderen Geldbörse. Wer das tut, will Sie berauben.</translation>
    </message>
    <message>
        <source>Colours</source>
        <translation>Farben</translation>
    </message>
    <message>
        <source>as the desktop</source>
        <translation>wie der Desktop</translation>
    </message>
    <message>
        <source>light</source>
        <translation>hell</translation>
    </message>
    <message>
        <source>dark</source>
        <translation>dunkel</translation>
    </message>
    <message>
        <source>Language</source>
        <translation>Sprache</translation>
    </message>
    <message>
        <source>From the next start of this window.</source>
        <translation>Ab dem nächsten Start dieses Fensters.</translation>
    </message>
    <message>
        <source>When lending stops by itself or needs you</source>
        <translation>Wenn das Verleihen von selbst aufhört oder Sie braucht</translation>
    </message>
    <message>
        <source>When a job failed here</source>
        <translation>Wenn ein Auftrag hier fehlschlug</translation>
    </message>
    <message>
        <source>When a payment arrived</source>
        <translation>Wenn eine Zahlung kam</translation>
    </message>
    <message>
        <source>When a job ended</source>
        <translation>Wenn ein Auftrag endete</translation>
    </message>
    <message>
        <source>When lending pauses or goes on</source>
        <translation>Wenn das Verleihen pausiert oder weitergeht</translation>
    </message>
    <message>
        <source>An address or an invitation. What runs is handed over when you change it.</source>
        <translation>Eine Adresse oder eine Einladung. Was läuft, wird bei einer Änderung übergeben.</translation>
    </message>
    <message>
        <source>Name of this computer</source>
        <translation>Name dieses Computers</translation>
    </message>
    <message>
        <source>Everybody sees it on the network page.</source>
        <translation>Alle sehen ihn auf der Netzseite.</translation>
    </message>
    <message>
        <source>the host name</source>
        <translation>der Rechnername</translation>
    </message>
    <message>
        <source>Works for</source>
        <translation>Arbeitet für</translation>
    </message>
    <message>
        <source>In your currency, or in tokens without one. Forecasts take it off.</source>
        <translation>In Ihrer Währung, ohne sie in Token. Vorhersagen ziehen es ab.</translation>
    </message>
    <message>
        <source>Start with the computer</source>
        <translation>Mit dem Computer starten</translation>
    </message>
    <message>
        <source>With the desktop, and while lending is on also without it: as a service of this system.</source>
        <translation>Mit der Arbeitsumgebung, und solange das Verleihen an ist auch ohne sie: als Dienst dieses Systems.</translation>
    </message>
    <message>
        <source>Fetch new versions</source>
        <translation>Neue Versionen holen</translation>
    </message>
    <message>
        <source>In the background, signed; you say when to restart. Debian packages are updated by the system.</source>
        <translation>Im Hintergrund und signiert; wann neu gestartet wird, sagen Sie. Debian-Pakete aktualisiert das System.</translation>
    </message>
    <message>
        <source>What leaves this computer</source>
        <translation>Was diesen Computer verlässt</translation>
    </message>
    <message>
        <source>Nothing else. There is no telemetry, and nothing to switch off.</source>
        <translation>Sonst nichts. Es gibt keine Telemetrie und nichts abzuschalten.</translation>
    </message>
    <message>
        <source>Jobs run in containers: they see neither your files nor your network, only the GPU and a folder of their own.</source>
        <translation>Aufträge laufen in Containern: Sie sehen weder Ihre Dateien noch Ihr Netz, nur die GPU und einen eigenen Ordner.</translation>
    </message>
    <message>
        <source>Settings of this window: {0}</source>
        <translation>Einstellungen dieses Fensters: {0}</translation>
    </message>
    <message>
        <source>Power cap: the driver keeps the GPU to it.</source>
        <translation>Leistungsgrenze: Der Treiber hält die GPU darunter.</translation>
    </message>
    <message>
        <source>Power cap: the driver does not let us set it. Jobs pause for moments; on average it is kept.</source>
        <translation>Leistungsgrenze: Der Treiber lässt sie nicht setzen. Aufträge halten kurz inne; im Mittel wird sie eingehalten.</translation>
    </message>
    <message>
        <source>The power cap is not in force: {0}</source>
        <translation>Die Leistungsgrenze gilt nicht: {0}</translation>
    </message>
    <message>
        <source>all {0} cards</source>
        <translation>alle {0} Karten</translation>
    </message>
    <message>
        <source>a GPU that is not here ({0})</source>
        <translation>eine GPU, die nicht da ist ({0})</translation>
    </message>
    <message>
        <source>the processor</source>
        <translation>der Prozessor</translation>
    </message>
    <message>
        <source>the processor (there is no NVIDIA GPU)</source>
        <translation>der Prozessor (es gibt keine NVIDIA-GPU)</translation>
    </message>
    <message>
        <source>Cottage {0}, Apache License 2.0.</source>
        <translation>Cottage {0}, Apache-Lizenz 2.0.</translation>
    </message>
    <message>
        <source>While jobs run. Where the driver does not let us set it, jobs pause for moments instead.</source>
        <translation>Solange Aufträge laufen. Lässt der Treiber sie nicht setzen, halten Aufträge stattdessen kurz inne.</translation>
    </message>
    <message>
        <source>To the coordinator: name, device, speed, memory, speed of your internet, the wallet that is paid, and the work.</source>
        <translation>An den Koordinator: Name, Gerät, Tempo, Speicher, Tempo Ihres Internets, die bezahlte Geldbörse und die Arbeit.</translation>
    </message>
    <message>
        <source>To peers of a job: the work, and the internet address of this computer.</source>
        <translation>An Partner eines Auftrags: die Arbeit und die Internetadresse dieses Computers.</translation>
    </message>
    <message>
        <source>The agent was started with --always: it lends whatever these rules say.</source>
        <translation>Der Agent wurde mit --always gestartet: Er verleiht, was auch immer diese Regeln sagen.</translation>
    </message>
    <message>
        <source>Used in {0}: {1} GB</source>
        <translation>Verbraucht in {0}: {1} GB</translation>
    </message>
    <message>
        <source>Saved. It is in force.</source>
        <translation>Gespeichert. Es gilt.</translation>
    </message>
    <message>
        <source>Undone.</source>
        <translation>Zurückgenommen.</translation>
    </message>
</context>
<context>
    <name>Tray</name>
    <message>
        <source>&amp;Open Cottage</source>
        <translation>Cottage ö&amp;ffnen</translation>
    </message>
    <message>
        <source>S&amp;ettings…</source>
        <translation>&amp;Einstellungen …</translation>
    </message>
    <message>
        <source>Earned today {0}, in all {1}</source>
        <translation>Heute verdient {0}, insgesamt {1}</translation>
    </message>
    <message>
        <source>&amp;Stop lending</source>
        <translation>Auf&amp;hören zu verleihen</translation>
    </message>
    <message>
        <source>&amp;Start lending</source>
        <translation>Zu verleihen be&amp;ginnen</translation>
    </message>
    <message>
        <source>&amp;Quit (lending goes on)</source>
        <translation>&amp;Beenden (das Verleihen geht weiter)</translation>
    </message>
    <message>
        <source>&amp;Quit</source>
        <translation>&amp;Beenden</translation>
    </message>
    <message>
        <source>Cottage: {0}</source>
        <translation>Cottage: {0}</translation>
    </message>
    <message>
        <source>{0} °C</source>
        <translation>{0} °C</translation>
    </message>
    <message>
        <source>{0} today</source>
        <translation>{0} heute</translation>
    </message>
    <message>
        <source>Cottage</source>
        <translation>Cottage</translation>
    </message>
    <message>
        <source>Cottage stays here in the tray. Click the icon to see the window again.</source>
        <translation>Cottage bleibt hier in der Leiste. Ein Klick auf das Symbol bringt das Fenster zurück.</translation>
    </message>
</context>
<context>
    <name>WelcomePage</name>
    <message>
        <source>Welcome to Cottage</source>
        <translation>Willkommen bei Cottage</translation>
    </message>
    <message>
        <source>Lend this computer while you do not need it, and be paid for the work that was checked. First, what it can do:</source>
        <translation>Verleihen Sie diesen Computer, während Sie ihn nicht brauchen, und werden Sie für geprüfte Arbeit bezahlt. Zuerst, was er kann:</translation>
    </message>
    <message>
        <source>How far the check is</source>
        <translation>Wie weit die Prüfung ist</translation>
    </message>
    <message>
        <source>The network to lend to: its address, or an invitation</source>
        <translation>Das Netz, an das verliehen wird: seine Adresse oder eine Einladung</translation>
    </message>
    <message>
        <source>Another &amp;network…</source>
        <translation>Ein anderes &amp;Netz…</translation>
    </message>
    <message>
        <source>Check &amp;again</source>
        <translation>Noch einmal &amp;prüfen</translation>
    </message>
    <message>
        <source>&amp;Continue</source>
        <translation>&amp;Weiter</translation>
    </message>
    <message>
        <source>Where shall the earnings go?</source>
        <translation>Wohin sollen die Einnahmen gehen?</translation>
    </message>
    <message>
        <source>Into a &amp;wallet on this computer. It is made already.</source>
        <translation>In eine &amp;Geldbörse auf diesem Computer. Es gibt sie schon.</translation>
    </message>
    <message>
        <source>This is chosen unless you name another one. From there you send it on with “Withdraw” whenever you like: that takes no SOL, and the fee, which is taken out of the amount, is shown before.</source>
        <translation>Das gilt, solange Sie keine andere nennen. Von dort schicken Sie es mit „Auszahlen“ weiter, wann Sie wollen: Das braucht kein SOL, und die Gebühr, die vom Betrag abgeht, steht vorher da.</translation>
    </message>
    <message>
        <source>To an &amp;address of mine:</source>
        <translation>An eine &amp;Adresse von mir:</translation>
    </message>
    <message>
        <source>a Solana wallet address</source>
        <translation>eine Solana-Adresse</translation>
    </message>
    <message>
        <source>The address that is paid</source>
        <translation>Die Adresse, die bezahlt wird</translation>
    </message>
    <message>
        <source>Cottage never asks for the secret words of another wallet. Whoever does wants to rob you.</source>
        <translation>Cottage fragt nie nach den geheimen Wörtern einer anderen Geldbörse. Wer das tut, will Sie berauben.</translation>
    </message>
    <message>
        <source>Save a &amp;backup of the wallet now…</source>
        <translation>Jetzt eine &amp;Sicherung der Geldbörse speichern …</translation>
    </message>
    <message>
        <source>&amp;Take it</source>
        <translation>&amp;Übernehmen</translation>
    </message>
    <message>
        <source>I &amp;have one from before: bring it back…</source>
        <translation>Ich &amp;habe schon eine: zurückholen …</translation>
    </message>
    <message>
        <source>&amp;Back</source>
        <translation>&amp;Zurück</translation>
    </message>
    <message>
        <source>It lends once nobody has used the computer for five minutes, on mains only, and steps aside for games. All of that can be changed in the settings.</source>
        <translation>Er wird verliehen, wenn ihn fünf Minuten niemand benutzt hat, nur am Netz, und macht Platz für Spiele. All das lässt sich in den Einstellungen ändern.</translation>
    </message>
    <message>
        <source>Another &amp;wallet, or a backup of this one…</source>
        <translation>Eine andere &amp;Geldbörse, oder eine Sicherung von dieser …</translation>
    </message>
    <message>
        <source>Lend this computer</source>
        <translation>Diesen Computer verleihen</translation>
    </message>
    <message>
        <source>Start lending</source>
        <translation>Zu verleihen beginnen</translation>
    </message>
    <message>
        <source>&amp;Later</source>
        <translation>&amp;Später</translation>
    </message>
    <message>
        <source>Step {0} of 2</source>
        <translation>Schritt {0} von 2</translation>
    </message>
    <message>
        <source>Earnings go into a wallet on this computer, which is made already. “Withdraw” sends them on whenever you like.</source>
        <translation>Die Einnahmen gehen in eine Geldbörse auf diesem Computer, die es schon gibt. „Auszahlen“ schickt sie weiter, wann Sie wollen.</translation>
    </message>
    <message>
        <source>Earnings go to {0}.</source>
        <translation>Die Einnahmen gehen an {0}.</translation>
    </message>
    <message>
        <source>Cottage&apos;s agent does not run, so nothing can be checked: {0}</source>
        <translation>Cottages Agent läuft nicht, darum lässt sich nichts prüfen: {0}</translation>
    </message>
    <message>
        <source>Cottage&apos;s agent is starting.</source>
        <translation>Der Agent von Cottage startet.</translation>
    </message>
    <message>
        <source>Checking; measuring takes about a minute the first time.</source>
        <translation>Prüft; das Messen dauert beim ersten Mal etwa eine Minute.</translation>
    </message>
    <message>
        <source>This computer can lend.</source>
        <translation>Dieser Computer kann verliehen werden.</translation>
    </message>
    <message>
        <source>You can go on: it lends as soon as what is marked has been mended.</source>
        <translation>Sie können weitergehen: Geliehen wird, sobald das Markierte behoben ist.</translation>
    </message>
    <message>
        <source>The switch brings what is missing as well. {0}</source>
        <translation>Der Schalter bringt auch, was noch fehlt. {0}</translation>
    </message>
    <message>
        <source>Almost ready.</source>
        <translation>Fast bereit.</translation>
    </message>
    <message>
        <source>Ready.</source>
        <translation>Bereit.</translation>
    </message>
    <message>
        <source>Lending begins by itself once this has been mended:</source>
        <translation>Das Verleihen beginnt von selbst, sobald dies behoben ist:</translation>
    </message>
    <message>
        <source>The network to lend to is missing: give its address, or an invitation.</source>
        <translation>Das Netz, an das verliehen wird, fehlt: Geben Sie seine Adresse oder eine Einladung an.</translation>
    </message>
    <message>
        <source>The address is missing.</source>
        <translation>Die Adresse fehlt.</translation>
    </message>
</context>
<context>
    <name>WithdrawSheet</name>
    <message>
        <source>Withdraw</source>
        <translation>Abheben</translation>
    </message>
    <message>
        <source>a Solana wallet address</source>
        <translation>eine Solana-Adresse</translation>
    </message>
    <message>
        <source>all</source>
        <translation>alle</translation>
    </message>
    <message>
        <source>To the address</source>
        <translation>An die Adresse</translation>
    </message>
    <message>
        <source>Amount</source>
        <translation>Betrag</translation>
    </message>
    <message>
        <source>Leaves this wallet</source>
        <translation>Verlässt diese Geldbörse</translation>
    </message>
    <message>
        <source>Fee</source>
        <translation>Gebühr</translation>
    </message>
    <message>
        <source>Arrives</source>
        <translation>Kommt an</translation>
    </message>
    <message>
        <source>&amp;Send</source>
        <translation>&amp;Senden</translation>
    </message>
    <message>
        <source>&amp;Close</source>
        <translation>S&amp;chließen</translation>
    </message>
    <message>
        <source>It takes no SOL: the fee is taken out of the amount, and shown here before.</source>
        <translation>Das braucht kein SOL: Die Gebühr geht vom Betrag ab und steht vorher hier.</translation>
    </message>
    <message>
        <source>From the wallet on this computer to another one of yours.</source>
        <translation>Aus der Geldbörse auf diesem Computer in eine andere von Ihnen.</translation>
    </message>
    <message>
        <source>From the wallet on this computer, which holds {0} tokens, to another one of yours.</source>
        <translation>Aus der Geldbörse auf diesem Computer, in der {0} Token liegen, in eine andere von Ihnen.</translation>
    </message>
    <message>
        <source>Looking up what it costs…</source>
        <translation>Was es kostet, wird nachgesehen …</translation>
    </message>
    <message>
        <source>The address has no account for this token yet; making one is part of the fee, this once.</source>
        <translation>Die Adresse hat noch kein Konto für diesen Token; das Anlegen steckt dieses eine Mal in der Gebühr.</translation>
    </message>
    <message>
        <source>Look at the address once more: what is sent cannot be called back.</source>
        <translation>Sehen Sie die Adresse noch einmal an: Was gesendet ist, lässt sich nicht zurückholen.</translation>
    </message>
    <message>
        <source>{0} have arrived. Receipt: {1}</source>
        <translation>{0} sind angekommen. Quittung: {1}</translation>
    </message>
    <message>
        <source>Sending; the ledger confirms within a minute…</source>
        <translation>Sendet; der Ledger bestätigt binnen einer Minute …</translation>
    </message>
</context>
<context>
    <name>WithdrawWords</name>
    <message>
        <source>The fee is {0} now. Look at it, and send it again.</source>
        <translation>Die Gebühr beträgt jetzt {0}. Sehen Sie sie an und senden Sie noch einmal.</translation>
    </message>
    <message>
        <source>This is the secret of a wallet, not its address. Show it to nobody; if somebody saw it, move the money.</source>
        <translation>Das ist das Geheimnis einer Geldbörse, nicht ihre Adresse. Zeigen Sie es niemandem; wenn jemand es gesehen hat, bringen Sie das Geld woandershin.</translation>
    </message>
    <message>
        <source>This is no Solana address. Copy it from your wallet or exchange.</source>
        <translation>Das ist keine Solana-Adresse. Kopieren Sie sie aus Ihrer Geldbörse oder von Ihrer Börse.</translation>
    </message>
    <message>
        <source>This is the wallet on this computer itself. Give the address of another one.</source>
        <translation>Das ist die Geldbörse auf diesem Computer selbst. Nennen Sie die Adresse einer anderen.</translation>
    </message>
    <message>
        <source>This address is no wallet: tokens might be lost there. Copy the wallet&apos;s own address.</source>
        <translation>Diese Adresse ist keine Geldbörse: Dort könnten Token verloren gehen. Kopieren Sie die Adresse der Geldbörse selbst.</translation>
    </message>
    <message>
        <source>This is no amount. Write digits, with at most six decimals.</source>
        <translation>Das ist kein Betrag. Schreiben Sie Ziffern, mit höchstens sechs Nachkommastellen.</translation>
    </message>
    <message>
        <source>The wallet on this computer is empty. What jobs pay comes in here.</source>
        <translation>Die Geldbörse auf diesem Computer ist leer. Was Aufträge zahlen, kommt hier an.</translation>
    </message>
    <message>
        <source>The wallet holds {0}. Withdraw that, or less.</source>
        <translation>In der Geldbörse liegen {0}. Zahlen Sie das aus oder weniger.</translation>
    </message>
    <message>
        <source>The fee would leave too little. Withdraw at least {0}, or wait until there is more.</source>
        <translation>Die Gebühr ließe zu wenig übrig. Zahlen Sie mindestens {0} aus, oder warten Sie, bis es mehr ist.</translation>
    </message>
    <message>
        <source>No network is set. Say in Settings whom to lend to.</source>
        <translation>Es ist kein Netz eingestellt. Sagen Sie in den Einstellungen, an wen verliehen wird.</translation>
    </message>
    <message>
        <source>This wallet has earned nothing at this coordinator. In Settings, choose the one that has paid it.</source>
        <translation>Diese Geldbörse hat bei diesem Koordinator nichts verdient. Wählen Sie in den Einstellungen den, der sie bezahlt hat.</translation>
    </message>
    <message>
        <source>Your last withdrawal is not decided yet. Look at the wallet in two minutes, and try again.</source>
        <translation>Ihre letzte Auszahlung ist noch nicht entschieden. Sehen Sie in zwei Minuten in die Geldbörse, und versuchen Sie es dann wieder.</translation>
    </message>
    <message>
        <source>You have withdrawn as often as is paid for in a day. Try again in {0} h.</source>
        <translation>Sie haben so oft ausgezahlt, wie an einem Tag bezahlt wird. Versuchen Sie es in {0} Std. wieder.</translation>
    </message>
    <message>
        <source>What the coordinator pays for withdrawals in a day is used up. Try again in {0} h.</source>
        <translation>Was der Koordinator an einem Tag für Auszahlungen zahlt, ist verbraucht. Versuchen Sie es in {0} Std. wieder.</translation>
    </message>
    <message>
        <source>That was too often. Try again in a moment.</source>
        <translation>Das war zu oft. Versuchen Sie es gleich noch einmal.</translation>
    </message>
    <message>
        <source>The ledger does not answer. Nothing was sent; try again later.</source>
        <translation>Der Ledger antwortet nicht. Es wurde nichts gesendet; versuchen Sie es später wieder.</translation>
    </message>
    <message>
        <source>The coordinator does not answer. Nothing was sent; try again later.</source>
        <translation>Der Koordinator antwortet nicht. Es wurde nichts gesendet; versuchen Sie es später wieder.</translation>
    </message>
    <message>
        <source>It did not reach the ledger in time. Nothing was sent; try again.</source>
        <translation>Es hat den Ledger nicht rechtzeitig erreicht. Es wurde nichts gesendet; versuchen Sie es noch einmal.</translation>
    </message>
    <message>
        <source>The ledger refused it. Nothing was sent; look at what the wallet holds, and try again.</source>
        <translation>Der Ledger hat es abgelehnt. Es wurde nichts gesendet; sehen Sie nach, was in der Geldbörse liegt, und versuchen Sie es noch einmal.</translation>
    </message>
    <message>
        <source>It may have been sent. Look at the wallet in two minutes, before you send anything again.</source>
        <translation>Es ist vielleicht gesendet worden. Sehen Sie in zwei Minuten in die Geldbörse, bevor Sie noch einmal senden.</translation>
    </message>
    <message>
        <source>With SOL in this wallet, “cottage node send --own-sol” in a terminal sends it without the coordinator.</source>
        <translation>Mit SOL in dieser Geldbörse sendet es „cottage node send --own-sol“ in einem Terminal ohne den Koordinator.</translation>
    </message>
    <message>
        <source>This coordinator pays for no withdrawals: ask its operator.</source>
        <translation>Dieser Koordinator bezahlt keine Auszahlungen: Fragen Sie seinen Betreiber.</translation>
    </message>
    <message>
        <source>This coordinator does not say what a SOL is worth: ask its operator.</source>
        <translation>Dieser Koordinator sagt nicht, was ein SOL wert ist: Fragen Sie seinen Betreiber.</translation>
    </message>
    <message>
        <source>The coordinator&apos;s own wallet has too little SOL: tell its operator.</source>
        <translation>In der Geldbörse des Koordinators ist zu wenig SOL: Sagen Sie es seinem Betreiber.</translation>
    </message>
    <message>
        <source>The coordinator offered another transaction than what you asked for. Nothing was signed; tell its operator.</source>
        <translation>Der Koordinator hat eine andere Transaktion angeboten als die gewünschte. Es wurde nichts unterschrieben; sagen Sie es seinem Betreiber.</translation>
    </message>
</context>
<context>
    <name>WordsSheet</name>
    <message>
        <source>The 24 words</source>
        <translation>Die 24 Wörter</translation>
    </message>
    <message>
        <source>Whoever has these words has this computer&apos;s wallet. Write them on paper, and on nothing else.</source>
        <translation>Wer diese Wörter hat, hat die Geldbörse dieses Computers. Schreiben Sie sie auf Papier, und auf nichts anderes.</translation>
    </message>
    <message>
        <source>Nobody of Cottage will ever ask for them, nor for those of another wallet.</source>
        <translation>Niemand von Cottage wird je nach ihnen fragen, noch nach denen einer anderen Geldbörse.</translation>
    </message>
    <message>
        <source>&amp;Show them</source>
        <translation>&amp;Zeigen</translation>
    </message>
    <message>
        <source>&amp;Close</source>
        <translation>S&amp;chließen</translation>
    </message>
</context>
<context>
    <name>_WorkSheet</name>
    <message>
        <source>What the system says</source>
        <translation>Was das System sagt</translation>
    </message>
    <message>
        <source>&amp;Details</source>
        <translation>&amp;Einzelheiten</translation>
    </message>
    <message>
        <source>&amp;Install</source>
        <translation>&amp;Installieren</translation>
    </message>
    <message>
        <source>&amp;Close</source>
        <translation>S&amp;chließen</translation>
    </message>
</context>
</TS>
